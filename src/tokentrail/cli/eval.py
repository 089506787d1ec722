"""`tokentrail eval`: how well a model predicts a text."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokentrail.cli.help import Command
from tokentrail.cli.options import EngineOptions, note, takes_options
from tokentrail.cli.terminal import print_json, read_as_utf8
from tokentrail.cli.units import parse_count, read_flag

if TYPE_CHECKING:
    from tokentrail.engine import EngineConfig
    from tokentrail.engine.perplexity import Perplexity

ROWS = 512
"""Tokens whose log-probabilities are computed in one step, where the step has as many."""


@takes_options
def evaluate(
    *,
    model_file: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="What to evaluate; the same as --model.", show_default=False),
    ] = None,
    text: Annotated[
        str, typer.Option("--text", "-f", metavar="FILE", help="UTF-8 text to predict; -: standard input.")
    ],
    ctx_size: Annotated[
        str, typer.Option("--ctx-size", metavar="TOKENS", help="Tokens of a window.")
    ] = "512",
    stride: Annotated[
        str | None,
        typer.Option(
            "--stride",
            metavar="TOKENS",
            help="Let windows overlap: they begin so far apart, and their last so many tokens count. Left out: "
            "windows side by side, of which the second half counts.",
        ),
    ] = None,
    chunks: Annotated[
        int | None, typer.Option("--chunks", min=1, metavar="N", help="Windows to take at most.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    engine: EngineOptions,
) -> None:
    """Compute a model's perplexity of a text, as llama-perplexity does."""
    from tokentrail.engine.loading import create_runner
    from tokentrail.engine.opening import open_model
    from tokentrail.engine.perplexity import measure, windows
    from tokentrail.text import Tokenizer

    context = read_flag("--ctx-size", ctx_size, parse_count)
    step = None if stride is None else read_flag("--stride", stride, parse_count)
    config = _for_one_sequence(engine.engine_config(model_file), context)
    checkpoint, _ = open_model(config)
    if context > checkpoint.config.max_position:
        raise typer.BadParameter(
            f"{context} is above the model's context of {checkpoint.config.max_position}",
            param_hint="--ctx-size",
        )
    # What looks like a control token is ordinary text.
    ids = Tokenizer.from_checkpoint(checkpoint).encode(_read(text), parse_special=False)
    source = checkpoint.tokenizer
    cut = windows(ids, context, step, bos=source.bos_token_id if source.add_bos else None)[:chunks]
    runner = create_runner(config)
    started = time.perf_counter()
    with _Progress(len(cut)) as shown:
        result = measure(runner, cut, shown.tell)
    seconds = time.perf_counter() - started
    computed = sum(len(window.ids) - 1 for window in cut)
    facts = {
        "model": str(checkpoint.path),
        "text": text,
        "text_tokens": len(ids),
        "context": context,
        "stride": step,
        "windows": len(cut),
        "tokens": result.tokens,
        "nll": result.nll,
        "perplexity": result.value,
        "error": result.error,
        "seconds": seconds,
        "tokens_per_second": computed / seconds,
        "weight_bytes": runner.info.weight_bytes,
        "fingerprint": runner.info.fingerprint,
    }
    runner.close()
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def _for_one_sequence(config: EngineConfig, context: int) -> EngineConfig:
    """The engine's settings, for one window at a time: rows of logits instead of sequences."""
    import msgspec

    longest = config.max_model_len
    if longest is not None and longest < context:
        raise typer.BadParameter(f"it is below --ctx-size {context}", param_hint="--max-model-len")
    if config.speculative_model is not None:
        note("--speculative-model has no effect: nothing is generated.")
    return msgspec.structs.replace(
        config,
        max_model_len=context,
        # A step has as many rows of logits as sequences.
        max_num_seqs=min(ROWS, config.max_num_batched_tokens),
        kv_cache_memory=None,
        speculative_model=None,
    )


def _read(path: str) -> str:
    if path == "-":
        read_as_utf8()
        return sys.stdin.read()
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        problem = f"{path} cannot be read ({error.strerror or error})"
    except UnicodeDecodeError as error:
        problem = f"{path} is not UTF-8 (byte {error.start}); convert it first"
    raise typer.BadParameter(problem, param_hint="--text")


class _Progress:
    """A bar on stderr, with the perplexity so far."""

    def __init__(self, total: int) -> None:
        from tokentrail.cli.bench.report import progress_bar

        self._bar = progress_bar()
        self._task = self._bar.add_task("windows", total=total, detail="")

    def __enter__(self) -> _Progress:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def tell(self, so_far: Perplexity) -> None:
        self._bar.update(self._task, advance=1, detail=f"perplexity {so_far.value:.4f}")


def _show(facts: dict[str, Any]) -> None:
    from tokentrail.cli.bench.report import print_report

    cut = "side by side, their second halves count"
    if facts["stride"] is not None:
        cut = f"{facts['stride']:,} apart, their last {facts['stride']:,} tokens count"
    print_report(
        f"perplexity {facts['perplexity']:.4f} ± {facts['error']:.4f}",
        [
            ("model", facts["model"]),
            ("text", f"{facts['text']}, {facts['text_tokens']:,} tokens"),
            ("windows", f"{facts['windows']:,} of {facts['context']:,} tokens, {cut}"),
            ("counted", f"{facts['tokens']:,} tokens, {facts['nll']:.4f} nats each"),
            ("took", f"{facts['seconds']:.1f} s, {facts['tokens_per_second']:,.0f} tokens/s"),
        ],
    )


def register(app: typer.Typer) -> None:
    app.command(name="eval", cls=Command)(evaluate)
