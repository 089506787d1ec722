"""Which format a model's calls have: its chat template tells the model, so it tells us."""

from __future__ import annotations

from tokentrail.protocol import InvalidRequest
from tokentrail.text.tool_calls.base import ToolFormat
from tokentrail.text.tool_calls.deepseek import DeepSeek31Format, DeepSeekFormat, KimiFormat
from tokentrail.text.tool_calls.enclosed import HermesFormat, InternLMFormat
from tokentrail.text.tool_calls.gemma import Gemma4Format, GemmaFormat
from tokentrail.text.tool_calls.harmony import HarmonyFormat
from tokentrail.text.tool_calls.listed import CommandFormat, GraniteFormat
from tokentrail.text.tool_calls.llama import JsonListFormat, Llama3JsonFormat
from tokentrail.text.tool_calls.mistral import MistralFormat, MistralNamedFormat
from tokentrail.text.tool_calls.pythonic import PythonicFormat
from tokentrail.text.tool_calls.xml_like import GlmFormat, MiniMaxFormat, QwenCoderFormat, SeedFormat

FORMATS: dict[str, ToolFormat] = {
    one.name: one
    for one in (
        HermesFormat(),
        Llama3JsonFormat(),
        MistralFormat(),
        MistralNamedFormat(),
        GlmFormat(),
        QwenCoderFormat(),
        SeedFormat(),
        MiniMaxFormat(),
        GraniteFormat(),
        CommandFormat(),
        InternLMFormat(),
        DeepSeekFormat(),
        DeepSeek31Format(),
        GemmaFormat(),
        Gemma4Format(),
        HarmonyFormat(),
        KimiFormat(),
        PythonicFormat(),
        JsonListFormat(),
    )
}
"""By name."""
ALIASES = {
    "qwen": "hermes",
    "qwen25": "hermes",
    "qwen3": "hermes",
    "llama3": "llama3_json",
    "llama4_pythonic": "pythonic",
    "glm46": "glm45",
    "glm47": "glm45",
    "glm4": "glm45",
    "qwen3_xml": "qwen3_coder",
    "deepseek": "deepseek_v3",
    "deepseek_v3_1": "deepseek_v31",
    "gemma": "functiongemma",
    "phi4_mini": "granite",
    "command": "command_r",
    "harmony": "openai",
    "gpt_oss": "openai",
}
"""Other names that are in use for them."""

# The first whose text a template holds. Marks of one's own tell more than words that several use.
_SIGNS = (
    ("<|channel|>analysis<|message|>", "openai"),
    ("<seed:tool_call>", "seed_oss"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<|START_ACTION|>", "command_r"),
    ("<|action_start|>", "internlm"),
    ("<|tool_call|>", "granite"),
    ("<parameter=", "qwen3_coder"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<|tool_list_start|>", "pythonic"),
    ("<arg_key>", "glm45"),
    ("<start_function_call>", "functiongemma"),
    ("<|tool_call>", "gemma4"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("<|python_start|>", "pythonic"),
    ("<|tool_call_start|>", "pythonic"),
    ("tool_code", "pythonic"),
    ("func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary', "llama3_json"),
    ("'parameters': ", "llama3_json"),
)


def get_format(name: str) -> ToolFormat:
    """Raises `InvalidRequest` that names what there is."""
    found = FORMATS.get(ALIASES.get(name, name))
    if found is None:
        raise InvalidRequest(
            f"There is no tool call parser {name[:40]!r}; there are {', '.join(FORMATS)}.",
            param="tool_call_parser",
        )
    return found


def choose_format(template: str | None) -> ToolFormat | None:
    """The format of the calls that this template's model writes; None: the template knows no tools."""
    if template is None or "tools" not in template:
        return None
    for sign, name in _SIGNS:
        if sign in template:
            if name == "deepseek_v3" and "```json" not in template:
                return FORMATS["deepseek_v31"]
            if name == "mistral" and "[ARGS]" in template:
                return FORMATS["mistral_v11"]
            return FORMATS[name]
    # It tells the model of tools in some way: most models that nobody taught another write this one.
    return FORMATS["hermes"]
