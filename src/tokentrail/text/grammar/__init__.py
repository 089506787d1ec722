"""Grammars: what form an answer must have, and which tokens may come next. The library is llguidance.

`build_grammar` turns what a request asks for into one grammar text and checks it, before anything is computed, and
`build_form` does so for an answer with thoughts before it or tool calls in it; the API process does that. The engine
process compiles the text for its tokenizer (`GrammarTokenizer`) and keeps one `Matcher` a sequence. llguidance is
imported on first use: most processes never need it.
"""

from tokentrail.text.grammar.form import Calls, Thoughts, build_form
from tokentrail.text.grammar.marks import marks_in, marks_of
from tokentrail.text.grammar.matcher import GrammarTokenizer, Matcher
from tokentrail.text.grammar.source import build_grammar
from tokentrail.text.grammar.structural_tag import literals

__all__ = [
    "Calls",
    "GrammarTokenizer",
    "Matcher",
    "Thoughts",
    "build_form",
    "build_grammar",
    "literals",
    "marks_in",
    "marks_of",
]
