"""Messages → what is asked of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tokentrail.answer import ChatOptions, ChatPrompt
from tokentrail.protocol import InvalidRequest, SamplingParams, StructuredOutputsParams
from tokentrail.server.anthropic.requests import (
    ContentBlock,
    CountTokensRequest,
    Message,
    MessagesRequest,
    ResultBlock,
)
from tokentrail.server.conversation import LONGEST_THOUGHTS, Conversation, thinking_variables
from tokentrail.server.generation import Question
from tokentrail.server.schemas import given, left_open

_ROLES = ("user", "assistant", "system")
_NAMES = {
    "thinking_token_budget": "thinking.budget_tokens",
    ".function.parameters": ".input_schema",
    "stop must": "stop_sequences must",
    "stop may": "stop_sequences may",
}
"""See `Question.names`."""


def question_of(body: MessagesRequest) -> Question:
    if body.max_tokens < 1:
        raise InvalidRequest(f"max_tokens must be at least 1, not {body.max_tokens}.", param="max_tokens")
    prompt = prompt_of(body)
    chosen = given(body, ("temperature", "top_p", "top_k", "seed"))
    sampling = SamplingParams(
        stop=tuple(body.stop_sequences or ()), structured_outputs=_structured_outputs(body), **chosen
    )
    return Question(
        prompts=[prompt],
        sampling=sampling,
        unset=left_open(chosen),
        chat=options_of(body, body.max_tokens),
        # As with Anthropic's newer models, what does not fit the context only ends the answer earlier.
        default_max_tokens=body.max_tokens,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        names=_NAMES,
    )


def prompt_of(body: CountTokensRequest) -> ChatPrompt:
    messages = _conversation(body)
    tools = [] if body.tool_choice is not None and body.tool_choice.type == "none" else _tools(body)
    effort = None if body.output_config is None else body.output_config.effort
    variables = thinking_variables(effort, _thinks(body), "output_config.effort")
    last = messages[-1]
    if last["role"] != "assistant":
        return ChatPrompt(messages=messages, tools=tools, template_kwargs=variables)
    if "tool_calls" in last:
        raise InvalidRequest(
            "messages must not end with a tool_use block: send its result, as a tool_result block.",
            param="messages",
        )
    if not last.get("content"):
        return ChatPrompt(messages=messages[:-1], tools=tools, template_kwargs=variables)
    return ChatPrompt(
        messages=messages,
        tools=tools,
        add_generation_prompt=False,
        continue_final_message=True,
        template_kwargs=variables,
    )


def options_of(body: CountTokensRequest, max_tokens: int) -> ChatOptions:
    tools = _tools(body)
    choice = body.tool_choice
    kind = "auto" if choice is None else choice.type
    if kind not in ("auto", "any", "tool", "none"):
        raise InvalidRequest(
            f"tool_choice.type must be auto, any, tool or none, not {kind[:40]!r}.", param="tool_choice.type"
        )
    if kind in ("any", "tool") and not tools:
        raise InvalidRequest(f"tool_choice is {kind}, but there are no tools.", param="tool_choice")
    named = "required" if kind == "any" else kind
    if kind == "tool":
        named = (choice and choice.name) or ""
        if all(tool["function"]["name"] != named for tool in tools):
            raise InvalidRequest(
                f"tool_choice.name must be that of a tool, not {named[:80]!r}.", param="tool_choice.name"
            )
    return ChatOptions(
        tools=tools,
        tool_choice=named,
        parallel_tool_calls=not (choice is not None and choice.disable_parallel_tool_use),
        thinking_token_budget=_budget(body, max_tokens),
        # A budget is kept by who does not think.
        thoughts_optional=True,
    )


def _thinks(body: CountTokensRequest) -> bool:
    """Not unless asked to, as with Anthropic."""
    if body.thinking is None:
        return False
    kind = body.thinking.type
    if kind not in ("enabled", "adaptive", "disabled"):
        raise InvalidRequest(
            f"thinking.type must be enabled, adaptive or disabled, not {kind[:40]!r}.", param="thinking.type"
        )
    return kind != "disabled"


def _budget(body: CountTokensRequest, max_tokens: int) -> int | None:
    if body.thinking is None or body.thinking.type != "enabled":
        return None
    budget = body.thinking.budget_tokens
    field = "thinking.budget_tokens"
    if budget is None:
        raise InvalidRequest(f"You must provide {field}, or say adaptive.", param=field)
    if not 1 <= budget < max_tokens:
        raise InvalidRequest(
            f"{field} must be from 1 to below max_tokens ({max_tokens}), not {budget}.", param=field
        )
    return min(budget, LONGEST_THOUGHTS)


def _tools(body: CountTokensRequest) -> list[dict[str, Any]]:
    """As OpenAI has them, which is how templates know them."""
    tools = []
    for at, tool in enumerate(body.tools or ()):
        if tool.type not in (None, "custom"):
            raise InvalidRequest(
                f"tools[{at}] is of type {tool.type[:40]!r}, which only Anthropic's own servers and models know: "
                "describe it as a tool of your own, with an input_schema.",
                param=f"tools[{at}].type",
            )
        if tool.input_schema is None:
            field = f"tools[{at}].input_schema"
            raise InvalidRequest(f"You must provide {field}.", param=field)
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": tool.strict,
        }
        given = {key: value for key, value in function.items() if value is not None}
        tools.append({"type": "function", "function": given})
    return tools


def _structured_outputs(body: MessagesRequest) -> StructuredOutputsParams | None:
    wanted = None if body.output_config is None else body.output_config.format
    if wanted is None:
        return None
    field = "output_config.format"
    if wanted.type != "json_schema":
        raise InvalidRequest(
            f"{field}.type must be json_schema, not {wanted.type[:40]!r}.", param=f"{field}.type"
        )
    return StructuredOutputsParams(json=wanted.schema_, field=f"{field}.schema")


# --- messages --------------------------------------------------------------------------------------


def _conversation(body: CountTokensRequest) -> list[dict[str, Any]]:
    """Messages as templates read them: results are messages of their own, and one after the other of one role, one."""
    talk = Conversation()
    if body.system is not None:
        system = _text(body.system, "system")
        if system:
            talk.say("system", system)
    if not body.messages:
        raise InvalidRequest("messages must not be empty.", param="messages")
    said: list[str] = []
    """By the user, until somebody else has a word."""

    def user_done() -> None:
        if said:
            talk.say("user", "\n".join(said))
            said.clear()

    for at, message in enumerate(body.messages):
        where = f"messages[{at}]"
        if message.role not in _ROLES:
            raise InvalidRequest(
                f"{where}.role must be user, assistant or system, not {message.role[:40]!r}.",
                param=f"{where}.role",
            )
        if not message.content and not (message.role == "assistant" and at == len(body.messages) - 1):
            raise InvalidRequest(f"{where}.content must not be empty.", param=f"{where}.content")
        if message.role != "user":
            user_done()
        if message.role == "system":
            talk.say("system", _text(message.content, f"{where}.content"))
        elif message.role == "assistant":
            _assistant(talk, message, where)
        elif isinstance(message.content, str):
            said.append(message.content)
        else:
            for number, block in enumerate(message.content):
                place = f"{where}.content[{number}]"
                if block.type == "tool_result":
                    user_done()
                    _result(talk, block, place)
                else:
                    said.append(_text_of(block, place))
    user_done()
    messages = talk.messages()
    if not messages:
        raise InvalidRequest("messages must hold a message that is not empty.", param="messages")
    return messages


def _assistant(talk: Conversation, message: Message, where: str) -> None:
    if isinstance(message.content, str):
        talk.answer(message.content)
        return
    for number, block in enumerate(message.content):
        place = f"{where}.content[{number}]"
        if block.type == "thinking":
            talk.think(_given(block.thinking, f"{place}.thinking"))
        elif block.type == "tool_use":
            id, name = _given(block.id, f"{place}.id"), _given(block.name, f"{place}.name")
            if block.input is None:
                raise InvalidRequest(f"You must provide {place}.input.", param=f"{place}.input")
            talk.call(id, name, msgspec.json.encode(block.input).decode())
        elif block.type != "redacted_thinking":  # which only Anthropic can read
            talk.answer(_text_of(block, place))


def _result(talk: Conversation, block: ContentBlock, place: str) -> None:
    id = _given(block.tool_use_id, f"{place}.tool_use_id")
    if not talk.called(id):
        raise InvalidRequest(
            f"{place}.tool_use_id: there is no tool_use block with the id {id[:80]!r} before it.",
            param=f"{place}.tool_use_id",
        )
    talk.result(id, _text(block.content or "", f"{place}.content"))


def _text(content: str | Sequence[ResultBlock], where: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_text_of(block, f"{where}[{number}]") for number, block in enumerate(content))


def _text_of(block: ResultBlock, place: str) -> str:
    if block.type == "text":
        return _given(block.text, f"{place}.text")
    source = block.source
    if block.type == "document" and source is not None and not isinstance(source, str):
        if source.type == "text":
            data = _given(source.data, f"{place}.source.data")
            return "\n".join(filter(None, (block.title, block.context, data)))
        raise InvalidRequest(
            f"{place}.source is of type {source.type[:40]!r}, but the model reads text only.",
            param=f"{place}.source",
        )
    raise InvalidRequest(
        f"{place} is of type {block.type[:40]!r}, but the model reads text only.", param=place
    )


def _given(value: str | None, field: str) -> str:
    if value is None:
        raise InvalidRequest(f"You must provide {field}.", param=field)
    return value
