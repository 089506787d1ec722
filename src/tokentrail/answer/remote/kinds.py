"""What each kind of upstream knows beyond what OpenAI's API reference has.

Sources: the documentation of vLLM's and llama.cpp's servers and of TGI's messages API; docs/api.md.
"""

from __future__ import annotations

import msgspec


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    knows: frozenset[str]
    """Parameters that may be sent, by their names in `answer` and `SamplingParams`."""
    forms: frozenset[str]
    """Fields of `StructuredOutputsParams` that it can hold answers to."""
    tokenize: str | None = None
    """Whose routes it has to tell tokens: `vllm`'s or `llama.cpp`'s."""
    told_form: str = "openai"
    """Whose words tell it an answer's form."""


_OPENAI = frozenset(
    {
        "n",
        "logit_bias",
        "prompts",
        "token_ids_prompt",
        "echo",
        "suffix",
        "parallel_tool_calls",
        "reasoning_effort",
        "dimensions",
    }
)
_VLLM = (_OPENAI - {"suffix"}) | {
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "allowed_token_ids",
    "bad_words",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "truncate_prompt_tokens",
    "prompt_logprobs",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "thinking_token_budget",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "cache_salt",
    "seed_always",
    "fills_context",
}
_ALL_FORMS = frozenset({"json", "json_object", "regex", "choice", "grammar", "structural_tag"})

OPENAI = Kind(name="openai", knows=_OPENAI, forms=frozenset({"json", "json_object"}))
VLLM = Kind(name="vllm", knows=_VLLM, forms=_ALL_FORMS, tokenize="vllm", told_form="vllm")
TOKENTRAIL = Kind(
    name="tokentrail",
    knows=_VLLM | {"suffix", "priority", "typical_p"},
    forms=_ALL_FORMS,
    tokenize="vllm",
    told_form="tokentrail",
)
LLAMA_CPP = Kind(
    name="llama.cpp",
    knows=frozenset(
        {
            "n",
            "logit_bias",
            "prompts",
            "token_ids_prompt",
            "parallel_tool_calls",
            "top_k",
            "min_p",
            "typical_p",
            "repetition_penalty",
            "ignore_eos",
            "chat_template_kwargs",
            "seed_always",
        }
    ),
    forms=frozenset({"json", "json_object", "grammar"}),
    tokenize="llama.cpp",
    told_form="llama.cpp",
)
TGI = Kind(
    name="tgi",
    knows=frozenset({"seed_always"}),
    forms=frozenset({"json", "json_object", "regex"}),
    told_form="tgi",
)

BY_NAME = {kind.name: kind for kind in (OPENAI, VLLM, TOKENTRAIL, LLAMA_CPP, TGI)}
