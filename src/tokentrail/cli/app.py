"""The `tokentrail` program: its commands, and how errors end it.

Exit codes: 0 done, 1 an error, 2 a wrong command line, 130 stopped by Ctrl-C (a server that is told to end ends
with 0). Errors are one line on stderr, those of a deployment file one line each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from tokentrail.cli import bench, chat, config, eval, generate, inspect, keys, serve, tenants, usage
from tokentrail.cli.help import CONTEXT
from tokentrail.cli.hiding import hide_keys
from tokentrail.cli.options import note
from tokentrail.cli.terminal import write_anywhere
from tokentrail.protocol.errors import TokentrailError

app = typer.Typer(
    name="tokentrail",
    help="The journey of an AI answer as software: an inference engine and an OpenAI-compatible server "
    "that show every step of every answer.",
    epilog="Start with: tokentrail serve",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)
serve.register(app)
chat.register(app)
generate.register(app)
inspect.register(app)
eval.register(app)
bench.register(app)
config.register(app)
keys.register(app)
tenants.register(app)
usage.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from tokentrail import __version__

        print(f"tokentrail {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def _fail(text: str, code: int, *, lines: bool = False) -> NoReturn:
    """`lines`: the text may have several."""
    first, *others = (text.splitlines() if lines else []) or [text]
    print("\n".join((f"tokentrail: error: {' '.join(first.split())}", *others)), file=sys.stderr)
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit."""
    write_anywhere()
    if any(word.startswith("--api-key") for word in sys.argv) and not hide_keys():
        note("a key on a command line can be seen by everybody on this machine: use TOKENTRAIL_API_KEY")
    try:
        result = app(args=arguments, prog_name="tokentrail", standalone_mode=False)
        sys.stdout.flush()
    except TokentrailError as error:
        _fail(str(error), 1, lines=error.lines)
    except BrokenPipeError:
        # The reader of our output has gone (| head). Keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except Exception as error:
        # Wrong usage: whichever click typer stands on, its errors know their message and exit code.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        text = message()
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "tokentrail"
        _fail(f"{text} (see {command} --help)", getattr(error, "exit_code", 1))
    sys.exit(result if isinstance(result, int) else 0)
