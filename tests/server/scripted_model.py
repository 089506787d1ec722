"""A server whose model says what a test wants, with a template of a model that calls tools and thinks."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st
from scripted_server import MODEL, ScriptedServer

from tokentrail.answer.parsing import Formats
from tokentrail.answer.parts import TextParts
from tokentrail.text import ChatTemplate

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NOW: Any = {"type": "function", "function": {"name": "now"}}
QUESTION: Any = [{"role": "user", "content": "How is the weather in Paris?"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris 🗼", "days": 2}}\n</tool_call>'
PIECES = st.one_of(
    st.sampled_from(
        ["<think>", "</think>", CALL, CALL, CALL[:-20], "<tool_call>", "\n", " ", "the answer", "👩‍🚀é北"]
    ),
    st.text(max_size=8),
)
"""Of what such a model may say."""
TEMPLATE = (
    "{% for t in tools or [] %}<tool>{{ t | tojson }}</tool>{% endfor %}<tool_call>"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments.city }}]{% endfor %}"
    "{% if m.reasoning_content %}{{ m.reasoning_content }}</think>{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% if begin_thinking %}<think>\n{% endif %}"
)


class Scripted:
    def __init__(self, parts: TextParts, formats: Formats | None = None, **config: Any) -> None:
        template = ChatTemplate(TEMPLATE)
        self.parts = dataclasses.replace(
            parts, template=template, formats=Formats.of(TEMPLATE) if formats is None else formats
        )
        self.says = ""
        self.requests: list[Any] = []

        def script(request: Any) -> list[int]:
            self.requests.append(request)
            return [*self.parts.tokenizer.encode(self.says), 2]

        self.server = ScriptedServer(self.parts, config, {"script": script}, True)

    def ask(self, says: str, **fields: Any) -> Any:
        self.says = says
        return self.server.client().chat.completions.create(
            **{"model": MODEL, "messages": QUESTION, "seed": 1, **fields}
        )

    @property
    def prompt(self) -> str:
        return self.parts.tokenizer.decode(self.requests[-1].prompt, skip_special_tokens=False)
