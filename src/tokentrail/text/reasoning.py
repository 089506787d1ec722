"""What a model thinks before it answers, told apart from the answer."""

from __future__ import annotations

from dataclasses import dataclass

from tokentrail.protocol import InvalidRequest
from tokentrail.text.markers import MarkerSearch


@dataclass(frozen=True)
class ReasoningFormat:
    """Marks around the thoughts of an answer."""

    name: str
    start: str
    end: str

    @property
    def markers(self) -> tuple[str, ...]:
        return self.start, self.end

    def parser(self, prompt: str) -> ReasoningParser:
        """For an answer to `prompt`, which may have begun the thoughts already, or ended them."""
        return ReasoningParser(self, inside=self.begun(prompt), ended=self.ended(prompt))

    def begun(self, prompt: str) -> bool:
        """The prompt ends inside of thoughts."""
        return prompt.rstrip().endswith(self.start)

    def ended(self, prompt: str) -> bool:
        """The prompt ends with thoughts that are over: the answer begins with the answer."""
        return prompt.rstrip().endswith(self.end)


THINK = ReasoningFormat("think", "<think>", "</think>")
REASONING_FORMATS = {
    one.name: one
    for one in (
        THINK,
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>"),
        ReasoningFormat("kimi", "◁think▷", "◁/think▷"),
        ReasoningFormat("granite", "Here is my thought process:", "Here is my response:"),
        ReasoningFormat("openai", "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        ReasoningFormat("reasoning", "<reasoning>", "</reasoning>"),
    )
}
"""By name."""
_ALIASES = dict.fromkeys(
    ("deepseek_r1", "deepseek_v3", "qwen3", "glm45", "ernie45", "hunyuan_a13b", "olmo3", "minimax_m2"),
    "think",
)


def get_reasoning_format(name: str) -> ReasoningFormat:
    """Raises `InvalidRequest` that names what there is."""
    found = REASONING_FORMATS.get(_ALIASES.get(name, name))
    if found is None:
        raise InvalidRequest(
            f"There is no reasoning parser {name[:40]!r}; there are "
            f"{', '.join([*REASONING_FORMATS, *_ALIASES])}.",
            param="reasoning_parser",
        )
    return found


def choose_reasoning_format(template: str | None) -> ReasoningFormat | None:
    """The format whose marks a chat template holds; None: its model does not think aloud."""
    if template is not None:
        if REASONING_FORMATS["openai"].start in template:
            return REASONING_FORMATS["openai"]
        for one in REASONING_FORMATS.values():
            # A template that leaves out the thoughts of earlier answers looks for their end.
            if one.end in template:
                return one
    return None


class ReasoningParser:
    """Tells thoughts from the answer, however the text comes in pieces. Space around the marks is part of neither."""

    def __init__(self, format: ReasoningFormat, *, inside: bool, ended: bool) -> None:
        self._format = format
        self._search = MarkerSearch()
        self._state = "thinking" if inside else "answering" if ended else "start"
        self._space = ""
        self._skip_space = inside

    @property
    def answering(self) -> bool:
        """The thoughts are over, or there are none."""
        return self._state == "answering"

    @property
    def thinking(self) -> bool:
        return self._state == "thinking"

    @property
    def undecided(self) -> bool:
        """All that came so far may be space and the beginning of the start mark."""
        return self._state == "start"

    def push(self, text: str) -> tuple[str, str]:
        """(thoughts, answer) that the text brings."""
        self._search.push(text)
        return self._read(final=False)

    def flush(self) -> tuple[str, str]:
        return self._read(final=True)

    def _read(self, *, final: bool) -> tuple[str, str]:
        thoughts = ""
        search = self._search
        if self._state == "start":
            start = self._format.start
            text = search.rest()
            head = text.lstrip()
            if head.startswith(start):
                search.take(len(text) - len(head) + len(start))
                self._state, self._skip_space = "thinking", True
            elif start.startswith(head) and not final:
                return "", ""
            else:
                self._state = "answering"
        if self._state == "thinking":
            before, found = search.until((self._format.end,), final=final)
            thoughts = self._space + before
            if self._skip_space:
                thoughts = thoughts.lstrip()
                self._skip_space = not thoughts
            shown = thoughts.rstrip()
            self._space = thoughts[len(shown) :]
            thoughts = shown
            if found is None:
                return thoughts, ""
            self._state, self._skip_space = "answering", True
        answer = search.take()
        if self._skip_space:
            answer = answer.lstrip()
            self._skip_space = not answer
        return thoughts, answer
