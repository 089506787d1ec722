"""The command: collects what was asked for, and shows it to a person or as JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from tokentrail.cli.help import Command
from tokentrail.cli.options import EngineOptions, takes_options
from tokentrail.cli.terminal import print_json, typed
from tokentrail.protocol.errors import TokentrailError

SAMPLE = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
"""The conversation that shows a template: every role that templates commonly know, once."""


@takes_options
def inspect(
    *,
    model_file: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="What to look at; the same as --model.", show_default=False),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="TEXT", help="Show how TEXT is split into tokens.")
    ] = None,
    template: Annotated[
        bool, typer.Option("--template", help="Show what the chat template makes of a short conversation.")
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            help="Measure memory and cores for two seconds, to tell how fast the model could be here; with "
            "--quantization, quantize all of it, to tell the loss.",
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    engine: EngineOptions,
) -> None:
    """Show what is in a model, what it takes with these flags, and how fast it could be here."""
    from tokentrail.answer.parts import load_text_parts
    from tokentrail.cli.inspect.facts import facts
    from tokentrail.cli.inspect.machine import machine_facts
    from tokentrail.cli.inspect.tokens import split
    from tokentrail.engine.opening import open_model
    from tokentrail.protocol import DEFAULTED

    config = engine.engine_config(model_file)
    checkpoint, loss = open_model(config)
    parts = None
    try:
        parts = load_text_parts(
            config.model, engine.chat_template, generation_config=engine.generation_config
        )
    except TokentrailError:
        # The rest can be told of a model whose text nobody can read here.
        if tokens is not None or template or engine.chat_template is not None:
            raise
    result = facts(checkpoint, None if parts is None else parts.tokenizer)
    if parts is not None:
        result["sampling_defaults"] = {
            name: value for name in DEFAULTED if (value := getattr(parts.defaults, name)) is not None
        }
    if loss is not None:
        result["quantized_on_loading"] = config.quantization
        if measure:
            loss.measure(checkpoint)
            result["quantization_loss"] = loss.by_part()
    result |= machine_facts(checkpoint, config, measure=measure)
    if parts is not None and tokens is not None:
        result["tokens"] = split(parts.tokenizer, typed(tokens, "--tokens"))
    if parts is not None and (template or engine.chat_template is not None):
        result["rendered_template"] = parts.template.render(SAMPLE, add_generation_prompt=True)
    if as_json:
        print_json(result)
    else:
        from tokentrail.cli.inspect.show import show

        show(result)


def register(app: typer.Typer) -> None:
    app.command(cls=Command)(inspect)
