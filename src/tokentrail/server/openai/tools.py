"""What a chat request says of tools and thoughts → `ChatOptions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokentrail.answer import ChatOptions
from tokentrail.protocol import InvalidRequest
from tokentrail.server.conversation import LONGEST_THOUGHTS
from tokentrail.server.openai.requests import (
    ChatCompletionRequest,
    NamedFunction,
    ToolBody,
    ToolChoice,
)


def told_tools(body: ChatCompletionRequest) -> list[dict[str, Any]]:
    """What the template is told of: nothing where the model must not call anything."""
    return [] if _choice(body) == "none" else _tools(body)


def options_of(body: ChatCompletionRequest) -> ChatOptions:
    tools, choice = _tools(body), _choice(body)
    field = "function_call" if body.functions is not None else "tool_choice"
    if choice not in ("auto", "none", "required"):
        if all(tool["function"]["name"] != choice for tool in tools):
            among = "functions" if body.functions is not None else "tools"
            raise InvalidRequest(
                f"{field} names {choice[:80]!r}, which is not among the {among}.", param=field
            )
    elif choice == "required" and not tools:
        raise InvalidRequest("tool_choice is required, but there are no tools.", param="tool_choice")
    budget = body.thinking_token_budget
    if budget == -1:
        budget = None  # as vLLM has it: no limit
    if budget is not None and not 1 <= budget <= LONGEST_THOUGHTS:
        raise InvalidRequest(
            f"thinking_token_budget must be from 1 to {LONGEST_THOUGHTS}, or -1, not {budget}.",
            param="thinking_token_budget",
        )
    return ChatOptions(
        tools=tools,
        tool_choice=choice,
        # The older way has room for one call only.
        parallel_tool_calls=body.parallel_tool_calls is not False and body.functions is None,
        thinking_token_budget=budget,
    )


def _tools(body: ChatCompletionRequest) -> list[dict[str, Any]]:
    if body.functions is not None:
        if body.tools:
            raise InvalidRequest("functions is the older way of tools: give one of them.", param="functions")
        return [{"type": "function", "function": one.model_dump(exclude_none=True)} for one in body.functions]
    return functions(body.tools or ())


def functions(tools: Sequence[ToolBody]) -> list[dict[str, Any]]:
    """As templates know them. Raises `InvalidRequest` for tools that are none of the client's own functions."""
    for at, tool in enumerate(tools):
        if tool.type != "function":
            where = f"tools[{at}].type"
            raise InvalidRequest(f"{where} must be function, not {tool.type[:40]!r}.", param=where)
    return [tool.model_dump(exclude_none=True) for tool in tools]


def _choice(body: ChatCompletionRequest) -> str:
    """auto, none, required, or a function's name."""
    choice: str | ToolChoice | NamedFunction | None = body.tool_choice
    if body.functions is not None or (choice is None and body.function_call is not None):
        choice = body.function_call
    if isinstance(choice, ToolChoice):
        return choice.function.name
    if isinstance(choice, NamedFunction):
        return choice.name
    allowed = ("auto", "none") if body.functions is not None else ("auto", "none", "required")
    if choice is not None and choice not in allowed:
        field = "function_call" if body.functions is not None else "tool_choice"
        raise InvalidRequest(
            f"{field} must be {', '.join(allowed)} or a function, not {choice[:40]!r}.", param=field
        )
    return choice or "auto"
