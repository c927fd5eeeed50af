"""Prepares JSON Schemas for constrained sampling: removes keywords without effect and names unsupported ones.

A small schema, or a small grammar, can take seconds to compile and gigabytes of memory. So this module is also the
program of the confined process in which both are checked: `python -m services.text.schema FD`, run by the text service.
Its processor time and its memory are limited for each request. It sends `ChildReady`, and then answers each order with
`Begun`, followed by `SchemasChecked` or `OrderRefused`: a schema or a grammar cannot be followed, and `param` names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher

from services.errors import InvalidRequest
from services.sandbox import child
from services.sandbox.child import Begun, ChildReady, OrderRefused, Refusal, Unusable
from services.text.caller_grammar import answer_lark, compile_error
from services.worker.channel import BlockingChannel

OUTPUT = "response_format"  # the name of the output's schema in errors
# Limits of the process that checks schemas.
MEMORY_BYTES = 512 * 1024 * 1024  # in addition to the libraries
CPU_SECONDS = 3.0  # for all schemas of a request together; an ordinary schema takes a few milliseconds
MAX_BYTES = 256 * 1024
MAX_DEPTH = 100
# The limit of optional properties per object: the compiler holds four items for each one where any may come next, and
# fails at 2,000 in the middle of an answer.
MAX_OPTIONAL = 400
_GUIDANCE = "x-guidance"  # the compiler's own options, which callers must not set
# JSON Schema 2020-12 section 7.3. Other formats are annotations, and libraries write many (`path`, `jwt`, ...).
_FORMATS = frozenset(
    """
    date-time time date duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference
    uuid uri-template json-pointer relative-json-pointer regex
    """.split()  # noqa: SIM905 (twenty quoted words are harder to read)
)
_VALUES = frozenset({"const", "enum", "default", "examples"})  # their values are not schemas
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})  # names -> schemas
_COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
)
# Keywords without effect unless one of the others is present.
_DEPENDENT = {
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
}
# Values with which a keyword allows everything.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "propertyNames": (True, {}, {"type": "string"}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "not": (False,),
}
# The compiler ignores leap years, and allows a second 60 in any minute. These patterns match the dates and times that
# every library accepts: no leap second, no year 0.
_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEARS = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_DATE = (
    rf"(?:{_YEARS}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_NO_LEAP_SECOND = r"[0-9]{2}:[0-9]{2}:[0-5][0-9].*"
_CALENDAR = {"date": f"^{_DATE}$", "time": f"^{_NO_LEAP_SECOND}$", "date-time": f"^{_DATE}[Tt]{_NO_LEAP_SECOND}$"}
# Prefixes of compiler messages that do not name the keyword, and that keyword.
_KEYWORDS = {
    "regex parse error": "pattern",
    "Failed to generate regex for float range": "minimum/maximum/exclusiveMinimum/exclusiveMaximum",
    "Unknown format": "format",
    "patternProperty": "patternProperties",
    "Resource": "$ref",
    "Unsatisfiable schema: schema is false": "false",
}
_ADVICE = ". Enable 'coerce_one_of'"  # only the compiler's direct callers can follow it


def check_size(value: Mapping[str, Any], param: str, most: int = MAX_BYTES, depth: int = MAX_DEPTH) -> int:
    """Returns the bytes of a schema, or other JSON. Raises InvalidRequest if it is too large, or nested too deeply."""
    if _is_deeper(value, depth):
        raise InvalidRequest(f"'{param}' is nested deeper than {depth} levels.", param=param)
    size = len(json.dumps(value))
    if size > most:
        raise InvalidRequest(f"'{param}' has {size} bytes; at most {most} are allowed.", param=param)
    return size


def check_schema(schema: dict[str, Any], param: str) -> None:
    """Raises InvalidRequest if the schema cannot constrain sampling; the message names the keyword."""
    if problem := _crowded(schema) or _problem(fit(schema)):
        raise InvalidRequest(f"'{param}' cannot be used: {problem}", param=param)


def fit(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema in the form that the compiler supports.

    Keywords that allow everything are removed, integral float counts become integers, and dates get exact patterns.
    """
    fitted: dict[str, Any] = _fit({key: value for key, value in schema.items() if key != _GUIDANCE})
    return fitted


def lenient(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the closest supported schema, for one that need not be followed exactly; it is at least an object."""
    fitted = fit(schema)
    if _crowded(schema):
        return {"type": "object"}
    if not _problem(fitted):
        return fitted
    loose = {**fitted, _GUIDANCE: {"lenient": True}}
    return {"type": "object"} if _problem(loose) else loose


def _is_deeper(value: Any, levels: int) -> bool:
    layer = [value]
    while layer and levels:
        lists = [part.values() if isinstance(part, dict) else part for part in layer if isinstance(part, dict | list)]
        layer = [item for items in lists for item in items]
        levels -= 1
    return any(isinstance(part, dict | list) for part in layer)


def _fit(value: Any) -> Any:
    if isinstance(value, list):
        return [_fit(item) for item in value]
    if not isinstance(value, dict):
        return value
    fitted: dict[str, Any] = {}
    for key, item in value.items():
        if key in _VALUES:
            fitted[key] = item
        elif key in _NAMED and isinstance(item, dict):
            fitted[key] = {name: _fit(schema) for name, schema in item.items()}
        elif key in _COUNTS and isinstance(item, float) and item.is_integer():
            fitted[key] = int(item)
        elif not _has_no_effect(key, item, value):
            fitted[key] = _fit(item)
    if pattern := _CALENDAR.get(str(fitted.get("format"))):
        also = fitted.get("allOf")
        fitted["allOf"] = [*(also if isinstance(also, list) else ()), {"pattern": pattern}]
    return fitted


def _has_no_effect(key: str, value: Any, schema: dict[str, Any]) -> bool:
    if key in _DEPENDENT and not any(other in schema for other in _DEPENDENT[key]):
        return True
    if key == "format":
        return isinstance(value, str) and value not in _FORMATS
    return any(value == neutral and type(value) is type(neutral) for neutral in _NEUTRAL.get(key, ()))


def _crowded(schema: Any) -> str:
    """Describes an object of the schema that has too many optional properties; empty if there is none."""
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        if not isinstance(part, dict):
            continue
        parts += [item for key, item in part.items() if key not in _VALUES]
        named, required = part.get("properties"), part.get("required")
        if isinstance(named, dict):
            must = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
            optional = len(named.keys() - must)
            if optional > MAX_OPTIONAL:
                return f"properties: {optional} of one object are optional; at most {MAX_OPTIONAL} are allowed"
    return ""


def _problem(schema: dict[str, Any]) -> str:
    """Returns the compiler's error on one line; empty if the schema compiles."""
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    problem = compile_error(grammar).partition(_ADVICE)[0]
    for words, keyword in _KEYWORDS.items():
        if problem.startswith(words):
            meta = keyword == "$ref" and f"'{schema.get('$schema')}'" in problem
            problem = f"{'$schema' if meta else keyword}: {problem}"
    return problem


# --- the process that checks schemas


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSchemas:
    """An order to check all schemas and the grammar of one request.

    Schemas are JSON texts, because numbers may have any size.
    """

    output: str  # of the answer; empty: none
    kind: str = "json_schema"  # of `output`: a format that `answer_lark` knows, or a schema
    tools: tuple[tuple[str, bool | None], ...]  # of each tool: schema (empty: none) and strict; None: if it is possible
    constrained: bool  # whether a grammar is made even if no tool is strict


@dataclass(frozen=True, slots=True)
class SchemasChecked:
    """The answer: everything compiles."""

    strict: tuple[bool, ...]  # of each tool
    schemas: tuple[str, ...]  # of each tool, in the form that the compiler supports; empty: no grammar is made
    lark: str = ""  # of an output that is no schema


ToChecker = CheckSchemas
FromChecker = ChildReady | Unusable | Begun | SchemasChecked | OrderRefused


def checked(order: CheckSchemas) -> SchemasChecked:
    """Checks all schemas of a request. Raises InvalidRequest."""
    lark = ""
    if order.output and order.kind == "json_schema":
        check_schema(json.loads(order.output), OUTPUT)
    elif order.output:
        lark = answer_lark(order.kind, order.output, OUTPUT)
    strict = tuple(_strict(schema, wanted, at) for at, (schema, wanted) in enumerate(order.tools))
    if not (order.constrained or any(strict)):
        return SchemasChecked(strict, (), lark)
    schemas = (
        json.dumps((fit if exact else lenient)(json.loads(schema))) if schema else ""
        for (schema, _), exact in zip(order.tools, strict, strict=True)
    )
    return SchemasChecked(strict, tuple(schemas), lark)


def _strict(schema: str, wanted: bool | None, at: int) -> bool:
    if not schema or wanted is False:
        return wanted is not False
    try:
        check_schema(json.loads(schema), f"tools[{at}].parameters")
    except InvalidRequest:
        if wanted:
            raise
        return False
    return True


def _prepare(_: BlockingChannel[ToChecker]) -> child.ChildWork:
    lenient({"type": "object", "properties": {"a": {"type": "string", "format": "date"}}})  # imports everything
    return child.ChildWork(
        memory_bytes=MEMORY_BYTES,
        cpu_seconds=lambda _: CPU_SECONDS,
        answer=_answer,
        no_memory="the request's schemas need more memory than schemas are allowed",
    )


def _answer(order: CheckSchemas) -> SchemasChecked:
    try:
        return checked(order)
    except InvalidRequest as error:
        raise Refusal(error.message, error.param or "") from None


if __name__ == "__main__":
    child.run(ToChecker, _prepare)
