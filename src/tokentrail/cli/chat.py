"""`tokentrail chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tokentrail.cli.help import Command
from tokentrail.cli.options import EngineOptions, SamplingOptions, takes_options
from tokentrail.cli.sources import Message, RemoteOptions, Reply, Source, open_source
from tokentrail.cli.terminal import dim, draw_journey, read_as_utf8, typed, write
from tokentrail.protocol.errors import TokentrailError

if TYPE_CHECKING:
    from tokentrail.protocol import SamplingParams

HELP = """\
/help           this list
/reset          forget the conversation, keep the system message
/system TEXT    begin anew with TEXT as the system message; without TEXT: with none
/trail          draw the last answer's journey
/quit           end (or Ctrl-D)
Ctrl-C stops an answer; what was said of it stays in the conversation. Twice at the prompt, it ends."""

DEFAULT_MAX_TOKENS = 512
"""An answer's length when nobody says: small models may otherwise go round in circles until the context is full."""


@takes_options
def chat(
    *,
    model_file: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    sampling: SamplingOptions,
    remote: RemoteOptions,
    engine: EngineOptions,
) -> None:
    """Talk with a model in the terminal. An answer ends after 512 tokens unless --max-tokens says otherwise."""
    parameters = sampling.parameters()
    system = None if system is None else typed(system, "--system")
    source = open_source(
        engine, remote, model_file, default_max_tokens=DEFAULT_MAX_TOKENS, unset=sampling.unset()
    )
    try:
        Conversation(source, parameters, system).run()
    finally:
        source.close()


class Conversation:
    """Reads lines, answers them, remembers both."""

    def __init__(self, source: Source, sampling: SamplingParams, system: str | None) -> None:
        self.source = source
        self.sampling = sampling
        self.system = system
        self.messages: list[Message] = []
        self.last: Reply | None = None
        self.reset()

    def reset(self) -> None:
        self.messages = [] if not self.system else [{"role": "system", "content": self.system}]

    def run(self) -> None:
        """Until /quit or the end of the input."""
        interactive = sys.stdin.isatty()
        read_as_utf8()
        interrupted = False
        if interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # gives input() editing and a history
            print(dim(f"{self.source.model}. /help lists the commands, /quit ends."))
        while True:
            try:
                line = input("> " if interactive else "").strip()
            except EOFError:
                if interactive:
                    print()
                return
            except KeyboardInterrupt:
                print()
                if interrupted:
                    return
                print(dim("/quit, Ctrl-D or another Ctrl-C ends."))
                interrupted = True
                continue
            interrupted = False
            if line.startswith("/"):
                if not self.command(*line.partition(" ")[::2]):
                    return
            elif line:
                self.answer(line)

    def command(self, name: str, rest: str) -> bool:
        """Carry out a command; False: end."""
        if name in ("/quit", "/exit", "/q"):
            return False
        if name == "/help":
            print(HELP)
        elif name == "/reset":
            self.reset()
            print(dim("The conversation begins anew."))
        elif name == "/system":
            self.system = rest.strip() or None
            self.reset()
            print(
                dim(
                    "The conversation begins anew, "
                    + ("with" if self.system else "without")
                    + " a system message."
                )
            )
        elif name == "/trail":
            self.draw()
        else:
            print(f"{name} is not a command; /help lists them.")
        return True

    def answer(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        reply = Reply()
        stopped = False
        try:
            for piece in self.source.stream(self.messages, self.sampling, reply):
                write(piece)
        except KeyboardInterrupt:
            stopped = True
        except TokentrailError as error:
            self.messages.pop()
            hint = " /reset begins anew." if error.code == "context_length_exceeded" else ""
            print(f"error: {error}{hint}", file=sys.stderr)
            return
        self.messages.append({"role": "assistant", "content": reply.text})
        self.last = reply
        rate = reply.tokens_per_second
        facts = [
            f"{reply.completion_tokens} tokens" if reply.completion_tokens else "",
            f"first after {reply.first_token_seconds:.2f} s" if reply.first_token_seconds is not None else "",
            f"{rate:.0f} tokens/s" if rate is not None else "",
            "stopped" if stopped else "cut at the length limit" if reply.finish_reason == "length" else "",
        ]
        print(dim("\n" + " · ".join(filter(None, facts))))

    def draw(self) -> None:
        if self.last is None or not self.last.id:
            print("There is no answer yet.")
            return
        try:
            draw_journey(self.source.journey(self.last))
        except TokentrailError as error:
            print(f"error: {error}", file=sys.stderr)


def register(app: typer.Typer) -> None:
    app.command(cls=Command)(chat)
