"""JSON Schemas, made fit for constraining sampling: what says nothing is left out, what cannot be followed is named."""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher

from services.rpc.errors import InvalidRequest

MAX_BYTES = 256 * 1024
MAX_DEPTH = 100
MAX_PROBLEM = 300  # characters
_GUIDANCE = "x-guidance"  # the compiler's own options; not for callers to set
# JSON Schema 2020-12 section 7.3; any other format is a note for people, and libraries write many (`path`, `jwt`, ...).
_FORMATS = frozenset(
    """
    date-time time date duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference
    uuid uri-template json-pointer relative-json-pointer regex
    """.split()  # noqa: SIM905 (twenty quoted words are harder to read)
)
_VALUES = frozenset({"const", "enum", "default", "examples"})  # what is in them is no schema
# What the compiler says without the keyword that it is about.
_KEYWORDS = {"regex parse error": "pattern", "Failed to generate regex for float range": "minimum/maximum"}


def check_size(schema: dict[str, Any], param: str) -> None:
    """Raises InvalidRequest when a schema is larger, or nested deeper, than is compiled here."""
    if _is_deeper(schema, MAX_DEPTH):
        raise InvalidRequest(f"'{param}' is nested deeper than {MAX_DEPTH} levels.", param=param)
    size = len(json.dumps(schema))
    if size > MAX_BYTES:
        raise InvalidRequest(f"'{param}' has {size} bytes; {MAX_BYTES} are allowed.", param=param)


def check_schema(schema: dict[str, Any], param: str) -> None:
    """Raises InvalidRequest unless sampling can be constrained by the schema; the message names the keyword."""
    if problem := _problem(fit(schema)):
        raise InvalidRequest(f"'{param}' cannot be used: {problem}", param=param)


def fit(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema without what allows everything, and would be refused by the compiler."""
    fitted: dict[str, Any] = _fit({key: value for key, value in schema.items() if key != _GUIDANCE})
    return fitted


def lenient(schema: dict[str, Any]) -> dict[str, Any]:
    """The nearest that can be followed, for a schema that nobody promised to follow: at least an object."""
    fitted = fit(schema)
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
    return {
        key: item if key in _VALUES else _fit(item)
        for key, item in value.items()
        if not (key == "format" and isinstance(item, str) and item not in _FORMATS)
        and not (key == "propertyNames" and item == {"type": "string"})
    }


def _problem(schema: dict[str, Any]) -> str:
    """The compiler's own words, on one line; empty when it compiles."""
    problem = " ".join(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema))).split())
    for words, keyword in _KEYWORDS.items():
        if problem.startswith(words):
            problem = f"{keyword}: {problem}"
    return problem[:MAX_PROBLEM]
