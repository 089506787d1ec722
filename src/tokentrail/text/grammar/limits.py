"""How much a grammar may cost. Counts of work, not seconds: the same grammar always ends the same way."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance._lib import LLParserLimits

MAX_SOURCE = 256 * 1024
"""Characters of a schema, expression or grammar."""


@lru_cache(maxsize=1)
def parser_limits() -> LLParserLimits:
    """Far above what real schemas need. At worst a compilation takes a second or two and a mask a tenth of one."""
    from llguidance._lib import LLParserLimits

    return LLParserLimits(
        max_grammar_size=200_000,
        # A lexer remembers what it worked out, so how much is left to do depends on what it saw before. So much that
        # only grammars that would stop the engine for half a second come near it.
        step_lexer_fuel=4_000_000,
        step_max_items=200_000,
        # Nothing of a grammar or an answer is to stand in a log.
        verbose_errors=False,
    )
