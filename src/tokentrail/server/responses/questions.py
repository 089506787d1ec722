"""Requests → what is asked of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokentrail.answer import ChatOptions, ChatPrompt
from tokentrail.protocol import InvalidRequest, SamplingParams, StructuredOutputsParams
from tokentrail.server.conversation import thinking_variables
from tokentrail.server.generation import Question
from tokentrail.server.responses.items import messages_of
from tokentrail.server.responses.requests import SUMMARIES, Item, ResponsesRequest, ToolChoice
from tokentrail.server.schemas import check_top_logprobs, given, left_open

NAMES = {"max_tokens": "max_output_tokens", "messages": "input", ".function.parameters": ".parameters"}
"""See `Question.names`."""
_LOGPROBS = "message.output_text.logprobs"


def question_of(body: ResponsesRequest, prompt: ChatPrompt) -> Question:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
    chosen = given(body, names)
    sampling = SamplingParams(
        max_tokens=body.max_output_tokens,
        logprobs=_logprobs(body),
        structured_outputs=_structured_outputs(body),
        **chosen,
    )
    return Question(
        prompts=[prompt],
        sampling=sampling,
        unset=left_open(chosen),
        chat=_options(body),
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        user=body.user,
        names=NAMES,
    )


def prompt_of(body: ResponsesRequest, history: Sequence[Item], items: Sequence[Item]) -> ChatPrompt:
    """`history`: what was said in responses before this one."""
    if body.truncation not in (None, "auto", "disabled"):
        raise InvalidRequest(
            f"truncation must be auto or disabled, not {body.truncation[:40]!r}.", param="truncation"
        )
    reasoning = body.reasoning
    for name in ("summary", "generate_summary"):
        if reasoning is not None and (given := getattr(reasoning, name)) not in (None, *SUMMARIES):
            field = f"reasoning.{name}"
            raise InvalidRequest(
                f"{field} must be auto, concise or detailed, not {given[:40]!r}.", param=field
            )
    return ChatPrompt(
        messages=messages_of(history, items, body.instructions),
        tools=[] if body.tool_choice == "none" else _tools(body),
        template_kwargs=thinking_variables(
            None if reasoning is None else reasoning.effort, None, "reasoning.effort"
        ),
    )


def _tools(body: ResponsesRequest) -> list[dict[str, Any]]:
    """As chat completions have them, which is how templates know them."""
    tools = []
    for at, tool in enumerate(body.tools or ()):
        if tool.type != "function":
            raise InvalidRequest(
                f"tools[{at}] is of type {tool.type[:40]!r}, which this server does not have: only functions of your "
                "own are (type function).",
                param=f"tools[{at}].type",
            )
        if tool.name is None:
            raise InvalidRequest(f"You must provide tools[{at}].name.", param=f"tools[{at}].name")
        tools.append({"type": "function", "function": tool.model_dump(exclude_none=True, exclude={"type"})})
    return tools


def _options(body: ResponsesRequest) -> ChatOptions:
    tools = _tools(body)
    choice = body.tool_choice
    if isinstance(choice, ToolChoice):
        named, tools = _of_object(choice, tools)
    elif choice not in (None, "auto", "none", "required"):
        raise InvalidRequest(
            f"tool_choice must be auto, none, required, a function or allowed_tools, not {choice[:40]!r}.",
            param="tool_choice",
        )
    else:
        named = choice or "auto"
    if named == "required" and not tools:
        raise InvalidRequest("tool_choice is required, but there are no tools.", param="tool_choice")
    return ChatOptions(
        tools=tools, tool_choice=named, parallel_tool_calls=body.parallel_tool_calls is not False
    )


def _of_object(choice: ToolChoice, tools: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """(what is chosen, among which tools)"""
    by_name = {tool["function"]["name"]: tool for tool in tools}

    def known(name: str | None, field: str) -> str:
        if name is None or name not in by_name:
            raise InvalidRequest(
                f"{field} must be the name of a tool, not {(name or '')[:80]!r}.", param=field
            )
        return name

    if choice.type == "function":
        return known(choice.name, "tool_choice.name"), tools
    if choice.type != "allowed_tools":
        raise InvalidRequest(
            f"tool_choice.type must be function or allowed_tools, not {choice.type[:40]!r}.",
            param="tool_choice.type",
        )
    if choice.mode not in ("auto", "required"):
        raise InvalidRequest(
            f"tool_choice.mode must be auto or required, not {(choice.mode or '')[:40]!r}.",
            param="tool_choice.mode",
        )
    names = [known(tool.name, f"tool_choice.tools[{at}].name") for at, tool in enumerate(choice.tools or ())]
    return choice.mode, [by_name[name] for name in dict.fromkeys(names)]


def _logprobs(body: ResponsesRequest) -> int | None:
    top = body.top_logprobs
    check_top_logprobs(top)
    # What else there is to include are results of built-in tools.
    return top or 0 if top or _LOGPROBS in (body.include or ()) else None


def _structured_outputs(body: ResponsesRequest) -> StructuredOutputsParams | None:
    wanted = None if body.text is None else body.text.format
    if wanted is None or wanted.type == "text":
        return None
    field = "text.format"
    if wanted.type == "json_object":
        return StructuredOutputsParams(json_object=True, field=field)
    if wanted.type != "json_schema":
        raise InvalidRequest(
            f"{field}.type must be text, json_object or json_schema, not {wanted.type[:40]!r}.",
            param=f"{field}.type",
        )
    if wanted.schema_ is None:
        raise InvalidRequest(f"You must provide {field}.schema.", param=f"{field}.schema")
    return StructuredOutputsParams(json=wanted.schema_, field=f"{field}.schema")
