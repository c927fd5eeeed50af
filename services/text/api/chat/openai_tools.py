"""OpenAI's tools, tool choice and response formats, as Chat Completions defines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from services.errors import InvalidRequest, Unsupported
from services.text.conversation import OutputFormat, Tool, ToolChoice
from services.text.limits import checked_choice


class FunctionDefinition(msgspec.Struct):
    """A function: its name, its description, and the JSON Schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, tag_field="type", tag="function"):
    """A function tool."""

    function: FunctionDefinition


class CustomTool(msgspec.Struct, tag_field="type", tag="custom"):
    """A tool with free text as its argument; declared only to be rejected."""


ToolDefinition = FunctionTool | CustomTool


class FunctionName(msgspec.Struct):
    """A function name."""

    name: str


class NamedFunction(msgspec.Struct, tag_field="type", tag="function"):
    """A tool that must be called; in a list, one that may be called."""

    function: FunctionName


class NamedCustom(msgspec.Struct, tag_field="type", tag="custom"):
    """A custom tool; declared only to be rejected."""


class AllowedTools(msgspec.Struct):
    """A subset of the tools: the model may call one of them or, in mode `required`, must."""

    mode: Literal["auto", "required"]
    tools: list[NamedFunction | NamedCustom]


class AllowedToolsChoice(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    """A tool choice that names a subset of the tools."""

    allowed_tools: AllowedTools


ToolChoiceBody = Literal["none", "auto", "required"] | NamedFunction | NamedCustom | AllowedToolsChoice


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """The format for plain text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """The format for any JSON object."""


class JsonSchema(msgspec.Struct):
    """A named schema. The answer follows it with or without `strict`."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """The format for JSON that follows a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


def tools_of(definitions: Sequence[ToolDefinition]) -> tuple[Tool, ...]:
    """Converts tools to the core's type. Raises Unsupported for tools that are not functions."""
    tools = []
    for at, definition in enumerate(definitions):
        if isinstance(definition, CustomTool):
            raise Unsupported(f"'tools[{at}]': tools of type 'custom' are not supported.", param=f"tools[{at}]")
        function = definition.function
        tools.append(
            Tool(
                name=function.name,
                description=function.description or "",
                parameters=function.parameters,
                strict=bool(function.strict),
            )
        )
    return tuple(tools)


def choice_of(choice: ToolChoiceBody | None, tools: Sequence[Tool]) -> ToolChoice:
    """Converts a tool choice to the core's type.

    Raises:
        InvalidRequest: it names an unknown tool, or requires one although there are none.
        Unsupported: it names a custom tool.
    """
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str):
        return checked_choice(choice, (), tools)
    if isinstance(choice, AllowedToolsChoice):
        names = [_name(tool) for tool in choice.allowed_tools.tools]
        if not names:
            raise InvalidRequest("'tool_choice.allowed_tools.tools' is empty.", param="tool_choice")
        return checked_choice(choice.allowed_tools.mode, names, tools)
    return checked_choice("required", [_name(choice)], tools)


def output_of(given: ResponseFormat | None) -> OutputFormat:
    """Converts a response format to the core's type. Raises InvalidRequest if a schema is missing."""
    if isinstance(given, JsonObjectFormat):
        return OutputFormat(kind="json_object")
    if isinstance(given, JsonSchemaFormat):
        if given.json_schema.schema is None:
            param = "response_format.json_schema.schema"
            raise InvalidRequest(f"Missing required parameter: '{param}'.", param=param)
        return OutputFormat(kind="json_schema", schema=given.json_schema.schema)
    return OutputFormat()


def _name(tool: NamedFunction | NamedCustom) -> str:
    if isinstance(tool, NamedCustom):
        raise Unsupported("'tool_choice': tools of type 'custom' are not supported.", param="tool_choice")
    return tool.function.name
