"""OpenAI's tools, choice of tools and response formats, as Chat Completions writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from services.errors import InvalidRequest, Unsupported
from services.text.conversation import OutputFormat, Tool, ToolChoice


class FunctionDefinition(msgspec.Struct):
    """A function: its name, what it does, and the JSON Schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, tag_field="type", tag="function"):
    """A tool that is a function."""

    function: FunctionDefinition


class CustomTool(msgspec.Struct, tag_field="type", tag="custom"):
    """A tool with free text for its argument; known, so that it can be refused."""


ToolDefinition = FunctionTool | CustomTool


class FunctionName(msgspec.Struct):
    """The name of a function."""

    name: str


class NamedFunction(msgspec.Struct, tag_field="type", tag="function"):
    """The one tool that must be called; or, in a list, one that may be."""

    function: FunctionName


class NamedCustom(msgspec.Struct, tag_field="type", tag="custom"):
    """A custom tool; known, so that it can be refused."""


class AllowedTools(msgspec.Struct):
    """Those of the tools that may be called, or one of which must be."""

    mode: Literal["auto", "required"]
    tools: list[NamedFunction | NamedCustom]


class AllowedToolsChoice(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    """A choice of some of the tools."""

    allowed_tools: AllowedTools


ToolChoiceBody = Literal["none", "auto", "required"] | NamedFunction | NamedCustom | AllowedToolsChoice


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Plain text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(msgspec.Struct):
    """A named schema. Whether `strict` or not, the answer follows it."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


def tools_of(definitions: Sequence[ToolDefinition]) -> tuple[Tool, ...]:
    """Tools in the core's words. Raises Unsupported for those that are no functions."""
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
    """A choice of tools in the core's words.

    Raises:
        InvalidRequest: it names a tool that there is not, or demands one where there are none.
        Unsupported: it names a custom tool.
    """
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str):
        if choice == "required" and not tools:
            raise InvalidRequest("'tool_choice' demands a tool, but 'tools' is empty.", param="tool_choice")
        return ToolChoice(mode=choice)
    if isinstance(choice, AllowedToolsChoice):
        names = [_name(tool) for tool in choice.allowed_tools.tools]
        return ToolChoice(mode=choice.allowed_tools.mode, names=_known(names, tools))
    return ToolChoice(mode="required", names=_known([_name(choice)], tools))


def output_of(wanted: ResponseFormat | None) -> OutputFormat:
    """A response format in the core's words. Raises InvalidRequest when a schema is missing."""
    if isinstance(wanted, JsonObjectFormat):
        return OutputFormat(kind="json_object")
    if isinstance(wanted, JsonSchemaFormat):
        if wanted.json_schema.schema is None:
            param = "response_format.json_schema.schema"
            raise InvalidRequest(f"Missing required parameter: '{param}'.", param=param)
        return OutputFormat(kind="json_schema", schema=wanted.json_schema.schema)
    return OutputFormat()


def _name(tool: NamedFunction | NamedCustom) -> str:
    if isinstance(tool, NamedCustom):
        raise Unsupported("'tool_choice': tools of type 'custom' are not supported.", param="tool_choice")
    return tool.function.name


def _known(names: Sequence[str], tools: Sequence[Tool]) -> frozenset[str]:
    there = {tool.name for tool in tools}
    for name in names:
        if name not in there:
            raise InvalidRequest(f"'tool_choice' names {name!r}, which is not among 'tools'.", param="tool_choice")
    if not names:
        raise InvalidRequest("'tool_choice.allowed_tools.tools' is empty.", param="tool_choice")
    return frozenset(names)
