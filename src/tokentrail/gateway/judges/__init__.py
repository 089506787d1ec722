"""Rules that ask somebody else: an HTTP endpoint, a moderation API, a model of this deployment.

A `Judge` reads a whole text, or a window of an answer, and gives its `Verdict`; `JudgingBackend` has prompts and
answers judged, and nothing leaves before. What local rules (`gateway.filters`) mask in a prompt, no judge reads.
"""

from tokentrail.gateway.judges.backend import JudgedAnswer, JudgingBackend
from tokentrail.gateway.judges.rules import JudgeRule, consult
from tokentrail.gateway.judges.verdicts import Judge, JudgeFailed, Mark, Matter, Verdict

__all__ = [
    "Judge",
    "JudgeFailed",
    "JudgeRule",
    "JudgedAnswer",
    "JudgingBackend",
    "Mark",
    "Matter",
    "Verdict",
    "consult",
]
