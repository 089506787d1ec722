"""Rules on a text that is still being written: nothing forbidden ever leaves in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokentrail.gateway.filters.rules import Action, Finding, Rule
from tokentrail.gateway.filters.spans import Window

_CONTEXT = 64
"""Characters before what is held that rules may look at: a word's neighbours."""


@dataclass
class _Mask:
    """A place that is masked. Places that overlap are one, and the rule's that begins first."""

    start: int
    end: int
    rule: Rule


class StreamFilter:
    """Holds back just as much of a text as may still become something forbidden.

    However the text is cut into pieces, what comes out, joined, is the same: what the rules make of the whole text.
    """

    def __init__(self, rules: Sequence[Rule], *, json: bool = False) -> None:
        """`json`: the text is JSON, and still is with its strings and numbers masked."""
        self._json = json
        self._watched = [(rule, rule.finder.watch()) for rule in rules]
        self._text = ""
        """The last characters that were dealt with, and those that are held."""
        self._base = 0
        """Characters before `_text`."""
        self._done = 0
        """Characters dealt with."""
        self._known: set[tuple[int, int, str]] = set()
        self._masks: list[_Mask] = []
        """In order; of those that are behind, the last one."""
        self._block: Finding | None = None
        """The first place that ends the text."""
        self.findings: list[Finding] = []
        """All that was found, each once."""
        self.blocked: Rule | None = None
        """The rule that ended the text. Nothing comes out any more."""

    @property
    def done(self) -> int:
        """Characters dealt with."""
        return self._done

    @property
    def seen(self) -> int:
        """Characters that came."""
        return self._base + len(self._text)

    def hides(self, start: int, end: int) -> bool:
        """Whether some of these characters were masked, or ended the text."""
        return bool(self.findings) and any(
            one.span.start < end and start < one.span.end and one.rule.action in (Action.MASK, Action.BLOCK)
            for one in self.findings
        )

    def push(self, text: str, *, final: bool = False) -> str:
        """Add to the text; returns what may be shown. `final`: nothing follows."""
        if self.blocked is not None or not text:
            return ""
        self._text += text
        return self._look(final)

    def flush(self) -> str:
        """The text is over; returns what was held."""
        # In a text that never began there is nothing to look for; streams end such ones all the time.
        return "" if self.blocked is not None or not self.seen else self._look(final=True)

    def _look(self, final: bool) -> str:
        upto = self.seen
        window = Window(self._text, self._base, final)
        for rule, watcher in self._watched:
            spans, open_from = watcher.look(window)
            upto = min(upto, open_from)
            for span in spans:
                self._add(Finding(rule, span))
        upto = max(upto, self._done)
        if self._block is not None and self._block.span.start <= upto:
            upto = max(self._block.span.start, self._done)
            self.blocked = self._block.rule
        return self._release(upto)

    def _add(self, finding: Finding) -> None:
        start, end, _ = finding.span
        key = (start, end, finding.rule.name)
        if end <= self._done or key in self._known:
            return
        self._known.add(key)
        self.findings.append(finding)
        if finding.rule.action is Action.BLOCK:
            if self._block is None or start < self._block.span.start:
                self._block = finding
        elif finding.rule.action is Action.MASK:
            self._masks.append(_Mask(start, end, finding.rule))
            # The longest first of those that begin together: which of them was found first must not matter.
            self._masks.sort(key=lambda mask: (mask.start, -mask.end, mask.rule.name))
            merged = self._masks[:1]
            for mask in self._masks[1:]:
                if mask.start < merged[-1].end:
                    merged[-1].end = max(merged[-1].end, mask.end)
                else:
                    merged.append(mask)
            self._masks = merged

    def _release(self, upto: int) -> str:
        """What is shown of the characters up to `upto`, which are dealt with then."""
        parts: list[str] = []
        at = self._done
        for mask in self._masks:
            if mask.end <= at or mask.start >= upto:
                continue
            parts.append(self._slice(at, mask.start))
            start, end = max(mask.start, at), min(mask.end, upto)
            replacement = mask.rule.replacement
            if replacement is None or self._json:
                parts += ("9" if self._json and c.isdigit() else "*" for c in self._slice(start, end))
            elif mask.start >= at:
                parts.append(replacement)
            at = end
        parts.append(self._slice(at, upto))
        self._done = upto
        if self._masks:
            behind = [mask for mask in self._masks if mask.end <= upto]
            self._masks = behind[-1:] + self._masks[len(behind) :]
        if self._known:
            self._known = {key for key in self._known if key[1] > upto}
        cut = max(0, upto - self._base - _CONTEXT)
        self._text = self._text[cut:]
        self._base += cut
        return "".join(parts)

    def _slice(self, start: int, end: int) -> str:
        return self._text[start - self._base : end - self._base] if start < end else ""


def filtered(rules: Sequence[Rule], text: str) -> tuple[str, StreamFilter]:
    """A whole text after the rules, and what they found."""
    stream = StreamFilter(rules)
    return stream.push(text, final=True), stream
