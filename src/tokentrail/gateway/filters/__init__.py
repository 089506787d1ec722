"""Keeping forbidden text out of prompts and answers: word lists, regular expressions, personal data.

A `Finder` finds places in a text, whole or still being written; a `Rule` says what is done about them; `StreamFilter`
does it, holding back only what may still become something forbidden.
"""

from tokentrail.gateway.filters.patterns import Pattern
from tokentrail.gateway.filters.personal import KINDS, Personal
from tokentrail.gateway.filters.rules import Action, Finding, Rule
from tokentrail.gateway.filters.spans import Finder, Span, Watcher, Window, find
from tokentrail.gateway.filters.stream import StreamFilter, filtered
from tokentrail.gateway.filters.words import WordList

__all__ = [
    "KINDS",
    "Action",
    "Finder",
    "Finding",
    "Pattern",
    "Personal",
    "Rule",
    "Span",
    "StreamFilter",
    "Watcher",
    "Window",
    "WordList",
    "filtered",
    "find",
]
