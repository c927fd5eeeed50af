"""Parameters with which vLLM and llama.cpp constrain an answer, converted to the core's output format.

vLLM: `structured_outputs`, and its older `guided_json`, `guided_choice`, `guided_regex` and `guided_grammar`; a grammar
may be Lark or GBNF there. llama.cpp: `json_schema`, and `grammar`, which is GBNF, or Lark after `%llguidance`. A
request may have one constraint, `response_format` included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from services.errors import InvalidRequest
from services.text.api.openai_sampling import SamplingBody, refuse_others
from services.text.conversation import OutputFormat
from services.text.schema import MAX_BYTES, OUTPUT

# The name that the core has for the format of an answer.
FORMAT = OUTPUT
_GBNF_RULE = re.compile(r"^\s*[A-Za-z0-9_-]+\s*::=", re.MULTILINE)


class StructuredOutputs(msgspec.Struct):
    """vLLM's object of constraints, of which one is set. The last group of fields is declared only to be rejected."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    structural_tag: Any = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None


class ConstraintBody(SamplingBody, kw_only=True):
    """The sampling parameters and the constraints of a request body."""

    guided_json: str | dict[str, Any] | None = None
    guided_choice: list[str] | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None


def constrained(given: ConstraintBody, output: OutputFormat) -> tuple[OutputFormat, Mapping[str, str]]:
    """Returns the output format of a request whose `response_format` is `output`, and the caller's name of it.

    Raises:
        InvalidRequest: there are two constraints, or one is malformed.
        Unsupported: a field of `structured_outputs` cannot be honoured.
    """
    found = {} if output.kind == "text" else {FORMAT: output}
    for name, convert in _CONVERSIONS.items():
        if (value := getattr(given, name)) is not None and (value or name != "grammar"):  # llama.cpp: "" is none
            found[name] = convert(value, name)
    if len(found) > 1:
        first, second, *_ = found
        raise InvalidRequest(f"'{first}' and '{second}' are mutually exclusive.", param=second)
    name, output = next(iter(found.items()), (FORMAT, output))
    return output, {} if name == FORMAT else {FORMAT: name}


def _schema(value: str | Mapping[str, Any], name: str) -> OutputFormat:
    schema: Any = value
    if isinstance(value, str):
        if len(value) > MAX_BYTES:
            raise InvalidRequest(f"'{name}' has {len(value)} characters; at most {MAX_BYTES} are allowed.", param=name)
        try:
            schema = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"'{name}' is not valid JSON: {error}", param=name) from error
    if not isinstance(schema, dict):
        raise InvalidRequest(f"'{name}' must be a JSON Schema, which is an object.", param=name)
    return OutputFormat(kind="json_schema", schema=schema)


def _choice(value: list[str], _: str) -> OutputFormat:
    return OutputFormat(kind="choice", choices=tuple(value))


def _regex(value: str, _: str) -> OutputFormat:
    return OutputFormat(kind="regex", source=value)


def _grammar(value: str, _: str) -> OutputFormat:
    return OutputFormat(kind="gbnf" if _GBNF_RULE.search(value) else "lark", source=value)


def _gbnf(value: str, _: str) -> OutputFormat:
    return OutputFormat(kind="lark" if value.startswith("%llguidance") else "gbnf", source=value)


def _structured(value: StructuredOutputs, name: str) -> OutputFormat:
    refuse_others(
        (
            (f"{name}.structural_tag", value.structural_tag, ()),
            (f"{name}.whitespace_pattern", value.whitespace_pattern, ()),
            (f"{name}.disable_any_whitespace", value.disable_any_whitespace, (False,)),
            (f"{name}.disable_additional_properties", value.disable_additional_properties, (False,)),
        )
    )
    kinds = {"json": _schema, "regex": _regex, "choice": _choice, "grammar": _grammar}
    found: list[OutputFormat] = [
        convert(part, f"{name}.{kind}")  # type: ignore[operator]
        for kind, convert in kinds.items()
        if (part := getattr(value, kind)) is not None
    ]
    if value.json_object:
        found.append(OutputFormat(kind="json_object"))
    if len(found) != 1:
        message = f"'{name}' must have exactly one of {', '.join(kinds)} and json_object, not {len(found)}."
        raise InvalidRequest(message, param=name)
    return found[0]


_CONVERSIONS: Mapping[str, Any] = {
    "guided_json": _schema,
    "guided_choice": _choice,
    "guided_regex": _regex,
    "guided_grammar": _grammar,
    "structured_outputs": _structured,
    "grammar": _gbnf,
    "json_schema": _schema,
}
