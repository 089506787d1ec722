"""How many tokens it pays to draft: what is accepted, and what a step costs, learnt from the steps themselves."""

from __future__ import annotations

_CHANCE = 0.6
"""Chance that a drafted token is right, before anything is known."""
_LEAST_CHANCE = 0.3
"""The least that a fresh sequence starts with, however others went: it may be the first that repeats its prompt."""
_NEWEST = 0.15
"""Of the newest outcome in a sequence's chance."""
_EXPERIENCE = 0.02
"""The same, in the chance that fresh sequences start with."""
_FORGET = 1 / 64
"""In each step without drafts a sequence's chance goes this part of its way back to where fresh sequences start,
so that drafting is tried again: at worst a few percent of the steps carry a token too many.
"""


class Lengths:
    """Chooses the lengths that bring the most tokens a second in the step ahead.

    A drafted token at depth j is right with the chance pʲ, p being a running mean of the sequence's own outcomes.
    It adds a row to the step, and one pass of the drafter if none goes so deep. It pays while its chance by the
    seconds it adds is above the tokens by the seconds of the whole step. A row adds little to a step of one
    sequence, which mostly waits for weights to come from memory, and about its full share to one of many: so
    drafts get shorter as the batch grows, and then none are made. (The same goal as SmartSpec's "goodput", Liu et
    al. 2024, arXiv:2406.14066.)

    Estimates are free to be wrong: they shape speed, never tokens.
    """

    def __init__(self, slots: int, longest: int) -> None:
        """`slots`: sequences that run at once; `longest`: tokens drafted for one in a step at most."""
        self.longest = longest
        self.cost = StepCost()
        self._experience = _CHANCE
        self._chance = [_CHANCE] * slots
        self._idle = [0] * slots
        """Steps since the slot's sequence had drafts."""

    def started(self, slot: int) -> None:
        self._chance[slot] = self._prior
        self._idle[slot] = 0

    def verified(self, slot: int, drafted: int, accepted: int) -> None:
        """Of `drafted` tokens, the first `accepted` were right. What stood behind the first wrong one tells nothing."""
        chance = self.chance(slot)
        for at in range(min(accepted + 1, drafted)):
            outcome = float(at < accepted)
            chance += _NEWEST * (outcome - chance)
            self._experience += _EXPERIENCE * (outcome - self._experience)
        self._chance[slot] = chance
        self._idle[slot] = 0

    def chance(self, slot: int) -> float:
        """That the next drafted token of the slot's sequence is right."""
        prior = self._prior
        return prior + (self._chance[slot] - prior) * (1 - _FORGET) ** self._idle[slot]

    def choose(self, slots: list[int], most: list[int], sequences: int, pass_seconds: float) -> list[int]:
        """Tokens to draft for the sequence in each of `slots`, at most `most` of them, in a step that decodes so many
        sequences in all. `pass_seconds`: what drafting one token more costs, for all of them at once.
        """
        chances = [self.chance(slot) for slot in slots]
        lengths = [0] * len(slots)
        tokens = float(sequences)
        seconds = self.cost.seconds(sequences)
        row = self.cost.row
        if not seconds:  # no step has been measured yet
            return lengths
        reach = list(chances)
        """Chance that all tokens up to the depth at hand are right."""
        for depth in range(1, min(self.longest, max(most, default=0)) + 1):
            # As the rate only rises, what does not pay at this rate will not pay at all.
            least = row * tokens / seconds
            at = [i for i, length in enumerate(lengths) if length == depth - 1 < most[i] and reach[i] > least]
            if not at:
                break
            gained, spent = sum(reach[i] for i in at), pass_seconds + row * len(at)
            if gained * seconds <= spent * tokens:
                break
            tokens += gained
            seconds += spent
            for i in at:
                lengths[i] = depth
                reach[i] *= chances[i]
        for i, slot in enumerate(slots):
            if not lengths[i]:
                self._idle[slot] += 1
        return lengths

    @property
    def _prior(self) -> float:
        return max(self._experience, _LEAST_CHANCE)


class StepCost:
    """Seconds of a step that decodes, as a line over its rows: what every step costs, and what a row adds.

    Fitted by least squares to the newest steps, old ones fading away. Where steps of different sizes are rare, the line
    leans towards a row that costs an eighth of a step of one.
    """

    _FADE = 0.98
    """Weight of a step against that of the one after it."""
    _SHARE = 0.125
    _LEAN = 1.0
    """Rows² of variance that the assumed share counts for."""
    _OUTLIER = 3.0
    """A step that takes so many times what was expected tells of the machine's other work: it counts as this."""

    def __init__(self) -> None:
        self._rows = self._seconds = 0.0  # means
        self._variance = self._covariance = 0.0
        self._weight = 0.0
        self.base = 0.0
        self.row = 0.0

    def seconds(self, rows: int) -> float:
        return self.base + self.row * rows

    def observe(self, rows: int, seconds: float) -> None:
        if self._weight > 5:
            seconds = min(seconds, self._OUTLIER * self.seconds(rows))
        self._weight = self._weight * self._FADE + 1
        part = 1 / self._weight
        off_rows, off_seconds = rows - self._rows, seconds - self._seconds
        self._rows += part * off_rows
        self._seconds += part * off_seconds
        self._variance += part * (off_rows * (rows - self._rows) - self._variance)
        self._covariance += part * (off_rows * (seconds - self._seconds) - self._covariance)
        # A row's cost if it is the assumed share of a step of one row.
        assumed = self._seconds * self._SHARE / (1 + self._SHARE * (self._rows - 1))
        slope = (self._covariance + self._LEAN * assumed) / (self._variance + self._LEAN)
        self.row = min(max(slope, 0.1 * assumed), self._seconds / self._rows)
        self.base = self._seconds - self.row * self._rows
