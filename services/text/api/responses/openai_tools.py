"""OpenAI's tools, tool choice and text format, as Responses defines them: decoding and encoding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from services.errors import InvalidRequest, Unsupported
from services.rest.openai import body
from services.text.api.chat.openai_tools import FunctionDefinition, FunctionName
from services.text.api.openai_sampling import refuse_others
from services.text.conversation import OutputFormat, Tool, ToolChoice
from services.text.limits import checked_choice
from services.text.responses.response import OutputName
from services.text.schema import check_size

_FORMAT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class FunctionBody(FunctionDefinition):
    """A function, with the JSON Schema of its arguments. These fields are declared only to be rejected."""

    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    asynchronous: bool | None = msgspec.field(default=None, name="async")


class AllowedBody(msgspec.Struct):
    """A subset of the tools: the model may call one of them or, in mode `required`, must."""

    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class SchemaBody(msgspec.Struct):
    """A named schema. The answer follows it with or without `strict`."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


def tools_of(given: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Converts tools to the core's type. By default a function is strict if its schema is supported.

    Raises:
        InvalidRequest: a function is malformed.
        Unsupported: a tool is not a function.
    """
    return tuple(_tool(one, f"tools[{at}]") for at, one in enumerate(given))


def choice_of(choice: str | Mapping[str, Any] | None, tools: Sequence[Tool]) -> ToolChoice:
    """Converts a tool choice to the core's type.

    Raises:
        InvalidRequest: it names an unknown tool, or requires one although there are none.
        Unsupported: it names a tool that is not a function.
    """
    param = "tool_choice"
    if choice is None or choice == "auto":
        return ToolChoice()
    if choice == "none":
        return ToolChoice(mode="none")
    if choice == "required":
        return checked_choice("required", (), tools)
    if isinstance(choice, str):
        raise InvalidRequest("'tool_choice' must be 'none', 'auto', 'required' or an object.", param=param)
    if choice.get("type") == "allowed_tools":
        allowed = body.convert(choice, AllowedBody, param)
        names = [_name(one, f"{param}.tools[{at}]") for at, one in enumerate(allowed.tools)]
        if not names:
            raise InvalidRequest("'tool_choice.tools' is empty.", param=f"{param}.tools")
        return checked_choice(allowed.mode, names, tools)
    return checked_choice("required", [_name(choice, param)], tools)


def format_of(given: Mapping[str, Any] | None) -> tuple[OutputFormat, OutputName]:
    """Converts a text format to the core's type. Returns it with the caller's name for it. Raises InvalidRequest."""
    param = "text.format"
    kind = (given or {}).get("type", "text")
    if kind == "text":
        return OutputFormat(), OutputName()
    if kind == "json_object":
        return OutputFormat(kind="json_object"), OutputName()
    if kind != "json_schema":
        raise InvalidRequest(f"'{param}.type' must be 'text', 'json_object' or 'json_schema'.", param=f"{param}.type")
    definition = body.convert(given, SchemaBody, param)
    if not _FORMAT_NAME.fullmatch(definition.name):
        message = f"'{param}.name' must be 1 to 64 letters, digits, '_' and '-', not {definition.name[:80]!r}."
        raise InvalidRequest(message, param=f"{param}.name")
    name = OutputName(name=definition.name, description=definition.description, strict=definition.strict)
    check_size(definition.schema, f"{param}.schema")
    return OutputFormat(kind="json_schema", schema=definition.schema), name


def tool_object(tool: Tool) -> dict[str, Any]:
    """Builds the `tools` entry of a response for a function."""
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description or None,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def choice_object(choice: ToolChoice) -> Any:
    """Builds the `tool_choice` of a response."""
    if not choice.names:
        return choice.mode
    tools = [{"type": "function", "name": name} for name in sorted(choice.names)]
    if choice.mode == "required" and len(tools) == 1:
        return tools[0]
    return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}


def format_object(output: OutputFormat, name: OutputName) -> dict[str, Any]:
    """Builds the text format of a response."""
    if output.kind != "json_schema":
        return {"type": output.kind}
    found = {"type": "json_schema", "name": name.name, "schema": output.schema, "strict": name.strict}
    return found if name.description is None else {**found, "description": name.description}


def _tool(given: Mapping[str, Any], param: str) -> Tool:
    _refuse_others(given, param)
    function = body.convert(given, FunctionBody, param)
    callers = function.allowed_callers or ["direct"]
    refuse_others(
        (
            (f"{param}.allowed_callers", None if "direct" in callers else callers, ()),
            (f"{param}.defer_loading", function.defer_loading, (False,)),
            (f"{param}.async", function.asynchronous, (False,)),
        )
    )
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters,
        strict=True if function.strict is None and function.parameters is None else function.strict,
    )


def _name(given: Mapping[str, Any], param: str) -> str:
    _refuse_others(given, param)
    return body.convert(given, FunctionName, param).name


def _refuse_others(given: Mapping[str, Any], param: str) -> None:
    kind = given.get("type")
    if kind is None:
        raise InvalidRequest(f"Missing required parameter: '{param}.type'.", param=f"{param}.type")
    if kind != "function":
        raise Unsupported(f"'{param}': tools of type {str(kind)[:40]!r} are not supported.", param=param)
