"""Text on its way to the model and back: chat templates, tokenizers, detokenization, stop strings.

Everything is built from a checkpoint's own sources, treats them as untrusted, and is safe to share between
threads; what belongs to one answer (`IncrementalDetokenizer`, `StopBuffer`) is small and made per answer.
Grammars and parsers of tool calls and reasoning will live here too.
"""

from tokentrail.text.building import build_tokenizer
from tokentrail.text.chat_template import ChatTemplate, read_chat_template
from tokentrail.text.detokenizer import IncrementalDetokenizer
from tokentrail.text.infill import Infill
from tokentrail.text.lines import LineLimit
from tokentrail.text.stop import StopBuffer
from tokentrail.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "IncrementalDetokenizer",
    "Infill",
    "LineLimit",
    "StopBuffer",
    "Tokenizer",
    "build_tokenizer",
    "read_chat_template",
]
