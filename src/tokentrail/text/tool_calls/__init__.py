"""Tool calls in the text of answers: how models write them, a small module a format.

A `ToolFormat` makes a `ToolParser` for one answer, which is fed the answer's text in any pieces and gives back events:
text, calls that begin (with their name), and pieces of a call's arguments, as JSON. What the events say, joined, does
not depend on the pieces. `choose_format` finds the format that a chat template was written for.
"""

from tokentrail.text.tool_calls.base import (
    Arguments,
    CallStart,
    Event,
    MemberGrammar,
    Text,
    Thought,
    Tool,
    ToolFormat,
    ToolGrammar,
    ToolParser,
)
from tokentrail.text.tool_calls.choosing import FORMATS, choose_format, get_format

__all__ = [
    "FORMATS",
    "Arguments",
    "CallStart",
    "Event",
    "MemberGrammar",
    "Text",
    "Thought",
    "Tool",
    "ToolFormat",
    "ToolGrammar",
    "ToolParser",
    "choose_format",
    "get_format",
]
