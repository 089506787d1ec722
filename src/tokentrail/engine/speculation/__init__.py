"""Speculative decoding: tokens are guessed cheaply, and one step of the model verifies several of them at once.

A step computes the drafted tokens behind the last one, and draws from the logits of each position exactly as a step
without drafts would have: with the same seed, position, penalties and biases. A drafted token counts while it equals
the one that was drawn, so speculation decides how many tokens a step brings, and never which. (Leviathan et al. 2022,
arXiv:2211.17192, accept at random so that the distribution stays the same; here the very draw does.)

`Drafter`s guess: `NgramDrafter` from the text itself, `ModelDrafter` with a smaller model. `Lengths` decides how many
tokens it pays to guess. `Speculator` joins them to the schedule.
"""

from __future__ import annotations

from tokentrail.engine.speculation.drafter import Drafter
from tokentrail.engine.speculation.lengths import Lengths
from tokentrail.engine.speculation.model import ModelDrafter
from tokentrail.engine.speculation.ngram import NgramDrafter
from tokentrail.engine.speculation.speculator import Speculator, create_speculator, is_ngram

__all__ = [
    "Drafter",
    "Lengths",
    "ModelDrafter",
    "NgramDrafter",
    "Speculator",
    "create_speculator",
    "is_ngram",
]
