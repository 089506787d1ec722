"""`tokentrail generate`: one answer, and the journey it made."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tokentrail.cli.help import Command
from tokentrail.cli.options import EngineOptions, SamplingOptions, takes_options
from tokentrail.cli.sources import Prompt, RemoteOptions, Reply, Source, open_source
from tokentrail.cli.terminal import draw_journey, print_json, read_as_utf8, typed, write


@takes_options
def generate(
    *,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="What to answer; - or nothing: standard input.", show_default=False
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Go on with the prompt as it stands, without the chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    trail: Annotated[bool, typer.Option("--trail", help="Draw the answer's journey below it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the text.")] = False,
    sampling: SamplingOptions,
    remote: RemoteOptions,
    engine: EngineOptions,
) -> None:
    """Answer one prompt."""
    text = _read(prompt)
    if raw and system is not None:
        raise typer.BadParameter("a system message needs the chat template", param_hint="--system")
    messages = [] if system is None else [{"role": "system", "content": typed(system, "--system")}]
    question: Prompt = text if raw else [*messages, {"role": "user", "content": text}]
    # A journey drawn in full shows what else each token might have been.
    parameters = sampling.parameters(logprobs=3 if trail and remote.url is None else None)
    source = open_source(engine, remote, unset=sampling.unset())
    try:
        reply = Reply()
        _answer(source, question, parameters, reply, quiet=as_json)
        journey = source.journey(reply) if trail else None
    finally:
        source.close()
    if as_json:
        import msgspec

        result: dict[str, Any] = {
            "id": reply.id,
            "model": reply.model,
            "text": reply.text,
            "finish_reason": reply.finish_reason,
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "seed": reply.seed,
            "first_token_seconds": reply.first_token_seconds,
            "seconds": reply.seconds,
        }
        if journey is not None:
            result["journey"] = msgspec.to_builtins(journey)
        print_json(result)
    elif journey is not None:
        print()
        draw_journey(journey)


def _read(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return typed(prompt, "PROMPT")
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give the text to answer, or pipe it in", param_hint="PROMPT")
    read_as_utf8()
    text = sys.stdin.read().rstrip("\n")
    if not text:
        raise typer.BadParameter("standard input is empty", param_hint="PROMPT")
    return text


def _answer(source: Source, question: Prompt, parameters: Any, reply: Reply, *, quiet: bool) -> None:
    for piece in source.stream(question, parameters, reply):
        if not quiet:
            write(piece)
    if not quiet:
        write("\n")


def register(app: typer.Typer) -> None:
    app.command(cls=Command)(generate)
