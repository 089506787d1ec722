"""Draws a journey in the terminal: a waterfall of its stages and steps on one time axis, and its tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tokentrail.journey.schema import JourneyView, SequenceView, StepView, TokenView

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_COLORS = {
    "template": "cyan",
    "tokenize": "cyan",
    "queue": "yellow",
    "prefill": "blue",
    "decode": "green",
    "recompute": "magenta",
}
# Least probability → color of a token: how sure the model was of it.
_SURENESS = ((0.8, "green"), (0.4, "yellow"), (0.1, "dark_orange"), (0.0, "red"))
_LEAST_AXIS, _MOST_AXIS = 10, 32
_NAMES_AND_TIMES = 30
"""Characters of a row before the axis: a stage, two times such as `12.3 ms`, and gaps."""
_BESIDES = "in all, besides the steps"
_MOST_CHUNKS = 12
_MOST_TOKENS = 64


def render(journey: JourneyView | Mapping[str, Any]) -> RenderableType:
    """A rich renderable of `journey`: a view, or the JSON that `GET /v1/journeys/{id}` returned."""
    from rich.console import Group

    if not isinstance(journey, JourneyView):
        journey = msgspec.convert(dict(journey), JourneyView)
    parts: list[RenderableType] = [_headline(journey), _Waterfall(journey)]
    for sequence in journey.sequences:
        parts.extend(_tokens(sequence, several=len(journey.sequences) > 1))
    return Group(*parts)


def _headline(journey: JourneyView) -> Text:
    from rich.text import Text

    cached = f" ({journey.cached_tokens} cached)" if journey.cached_tokens else ""
    total = "still running" if journey.stages.total is None else _seconds(journey.stages.total)
    first = journey.stages.first_token
    facts = [
        f"{journey.prompt_tokens}{cached} → {journey.completion_tokens} tokens",
        f"ended by {journey.outcome}" if journey.outcome else "",
        f"seed {journey.seed}" if journey.seed is not None else "",
    ]
    times = [
        total,
        "" if first is None else f"first token after {_seconds(first)}",
        "" if journey.tokens_per_second is None else f"{journey.tokens_per_second:.1f} tokens/s",
    ]
    line = Text(f"{journey.id}  {journey.model}\n", style="bold")
    lines = (" · ".join(filter(None, parts)) for parts in (facts, times))
    return line.append("\n".join(lines), style="not bold")


class _Waterfall:
    """Draws itself as wide as it may be."""

    def __init__(self, journey: JourneyView) -> None:
        self.journey = journey

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield _waterfall(self.journey, options.max_width)


def _waterfall(journey: JourneyView, max_width: int) -> Table:
    from rich.table import Table

    start = journey.received_at
    steps = [step for sequence in journey.sequences for step in sequence.steps]
    ends = [step.start_at + step.seconds for step in steps] + [event.at for event in journey.events]
    # The time axis gets what names, times and words leave of the line; the words give up their sparklines first.
    left = _NAMES_AND_TIMES + (4 if len(journey.sequences) > 1 else 0)
    spans = [(sequence, _spans(sequence, max_width - left - _LEAST_AXIS)) for sequence in journey.sequences]
    words = max((len(what) for _, rows in spans for *_, what in rows), default=0)
    width = min(_MOST_AXIS, max(_LEAST_AXIS, max_width - left - max(words, len(_BESIDES))))
    axis = _Axis(start, max([*ends, start + 1e-6]), width)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("stage", no_wrap=True)
    table.add_column("start", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column(f"0 … {_seconds(axis.end - start)}", no_wrap=True)
    table.add_column("what")

    def row(name: str, label: str, at: float, seconds: float, what: str = "") -> None:
        bar = axis.bar(at, seconds, _COLORS[name])
        table.add_row(name + label, _seconds(max(0.0, at - start)), _seconds(seconds), bar, what)

    def moment(name: str, at: float, what: str) -> None:
        table.add_row(name, _seconds(at - start), "", axis.mark(at, "red"), what)

    stages = journey.stages
    at = {event.event: event.at for event in reversed(journey.events)}
    ready = at.get("templated", start)
    if stages.tokenize is not None:
        if stages.template is not None:
            row("template", "", ready - stages.tokenize - stages.template, stages.template)
        row("tokenize", "", ready - stages.tokenize, stages.tokenize, f"{journey.prompt_tokens} tokens")
    if stages.queue is not None:
        row("queue", "", at.get("queued", ready), stages.queue)
    for sequence, rows in spans:
        label = f" [{sequence.index}]" if len(journey.sequences) > 1 else ""
        for name, first, last, what in rows:
            row(name, label, first.start_at, last.start_at + last.seconds - first.start_at, what)
        for when in sequence.preempted_at:
            moment("preempted" + label, when, "lost its blocks")
        for when in sequence.resumed_at:
            moment("resumed" + label, when, "on a fresh engine")
    for name, seconds in (("detokenize", stages.detokenize), ("send", stages.send)):
        if seconds:
            table.add_row(name, "", _seconds(seconds), "", _BESIDES)
    return table


def _spans(sequence: SequenceView, room: int) -> list[tuple[str, StepView, StepView, str]]:
    """Rows of the waterfall: prompt chunks (many are joined) and uninterrupted stretches of decoding; the last
    item, words on it, is of `room` characters if they can be had."""
    spans: list[list[StepView]] = []
    for step in sequence.steps:
        before = spans[-1][-1] if spans else None
        if before is not None and step.kind == "decode" and _alike(step, before):
            spans[-1].append(step)
        else:
            spans.append([step])
    chunks = [span for span in spans if span[0].kind != "decode"]
    if len(chunks) > _MOST_CHUNKS:
        joined: list[list[StepView]] = []
        for span in spans:
            if joined and span[0].kind != "decode" and _alike(span[0], joined[-1][0]):
                joined[-1].extend(span)
            else:
                joined.append(span)
        spans = joined
    return [(span[0].kind, span[0], span[-1], _describe(span, room)) for span in spans]


def _alike(one: StepView, other: StepView) -> bool:
    return one.kind == other.kind and one.engine == other.engine


def _describe(span: list[StepView], room: int) -> str:
    first, last = span[0], span[-1]
    drafted = sum(step.drafted_tokens for step in span)
    accepted = sum(step.accepted_tokens for step in span)
    count = sum(step.tokens for step in span) - drafted + accepted
    steps = f"step {first.step}" if first is last else f"steps {first.step}–{last.step}"
    batch = [step.batch_sequences for step in span]
    company = f"batch {min(batch)}" if min(batch) == max(batch) else f"batch {min(batch)}–{max(batch)}"
    parts = [steps]
    if first.kind != "decode" or count != len(span):  # else a step is a token
        parts.append(f"{count} token{'s' * (count != 1)}")
    if drafted:
        parts.append(f"{accepted} of {drafted} drafts right")
    if cached := sum(step.cached_tokens for step in span):
        parts.append(f"{cached} cached")
    if max(batch) > 1:
        parts.append(company)
    parts.append(f"{last.blocks} block{'s' * (last.blocks != 1)}")
    words = " · ".join(parts)
    left = room - len(words) - len(" · ")
    if len(span) > 2 and left >= min(4, len(span)):
        words += " · " + _sparkline([step.seconds for step in span], min(16, left))
    return words


def _tokens(sequence: SequenceView, *, several: bool) -> list[RenderableType]:
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    tokens = sequence.tokens
    if not tokens:
        return []
    mean = sum(token.logprob for token in tokens) / len(tokens)
    title = f"tokens of choice {sequence.index}" if several else "tokens"
    parts: list[RenderableType] = [
        Text(f"\n{title}: mean log-probability {mean:.3f}, perplexity {math.exp(-mean):.2f}", style="bold")
    ]
    if tokens[0].text is None:
        parts.append(Text("sure ", style="dim").append_text(_strip(tokens)))
        return parts
    parts.append(_colored(tokens))
    if any(token.top for token in tokens):
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("token", "probability", "instead"):
            table.add_column(name, no_wrap=name != "instead")
        for token in tokens[:_MOST_TOKENS]:
            others = [
                f"{escape(repr(entry.text))} {math.exp(entry.logprob):.0%}"
                for entry in token.top or ()
                if entry.id != token.id
            ]
            table.add_row(escape(repr(token.text)), f"{math.exp(token.logprob):.0%}", "  ".join(others))
        parts.append(table)
        if len(tokens) > _MOST_TOKENS:
            parts.append(Text(f"… and {len(tokens) - _MOST_TOKENS} more", style="dim"))
    return parts


def _colored(tokens: list[TokenView]) -> Text:
    from rich.text import Text

    line = Text()
    for token in tokens:
        line.append(token.text or "", style=_sureness(token.logprob))
    return line


def _strip(tokens: list[TokenView]) -> Text:
    from rich.text import Text

    line = Text()
    for token in tokens:
        level = min(7, int(8 * math.exp(min(0.0, token.logprob))))
        line.append(_HEIGHTS[level], style=_sureness(token.logprob))
    return line


def _sureness(logprob: float) -> str:
    probability = math.exp(min(0.0, logprob))
    return next(color for least, color in _SURENESS if probability >= least)


def _sparkline(values: list[float], width: int) -> str:
    """Mean of `values` in `width` equal parts, as heights between 0 and their maximum."""
    width = min(width, len(values))
    edges = [round(k * len(values) / width) for k in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    high = max(means) or 1.0
    return "".join(_HEIGHTS[min(7, int(8 * mean / high))] for mean in means)


class _Axis:
    """Wall-clock seconds → characters."""

    def __init__(self, start: float, end: float, width: int) -> None:
        self.start = start
        self.end = end
        self.width = width

    def _place(self, at: float) -> float:
        share = (at - self.start) / (self.end - self.start)
        return min(1.0, max(0.0, share)) * self.width

    def bar(self, at: float, seconds: float, style: str) -> Text:
        from rich.text import Text

        left, right = self._place(at), self._place(at + seconds)
        cell = min(int(left), self.width - 1)
        full = int(right) - cell
        rest = _EIGHTHS[int((right - int(right)) * 8)] if full < self.width - cell else ""
        # However short, it is drawn.
        body = ("█" * full + rest).rstrip() or "▏"
        return Text(" " * cell).append(body, style=style)

    def mark(self, at: float, style: str) -> Text:
        from rich.text import Text

        return Text(" " * min(int(self._place(at)), self.width - 1)).append("◆", style=style)


def _seconds(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s"
