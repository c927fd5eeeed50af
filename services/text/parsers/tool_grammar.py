"""The JSON Schemas of tools' arguments, and builders of tool call grammars in llguidance's Lark dialect.

Rule names start with `call` (except `start`), terminals with `CALL`. Most dialects write marks as text, which matches
both a token for the whole mark and the tokens of its parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
# Schemas of the arguments, by tool name.
Tools = Mapping[str, "Schema | None"]

STRING = frozenset({"string"})
ANY = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
# The depth limit for nested alternatives, because schemas come from callers.
MAX_DEPTH = 16
TEXT_RULE = r"CALL_TEXT: /(?s:.*)/"
# Models learn JSON with and without these spaces. More are not allowed: at high temperatures models write only spaces.
_JSON = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True, slots=True)
class ToolShape:
    """A tool's name and the JSON Schema of its arguments; None means no arguments."""

    name: str
    schema: dict[str, Any] | None


def properties(schema: Schema | None) -> dict[str, Any]:
    """Returns the schemas of an object's properties; one that is only listed in `required` allows everything."""
    schema = schema or {}
    found = schema.get("properties")
    named = dict(found) if isinstance(found, Mapping) else {}
    return named | {name: {} for name in required(schema) if name not in named}


def required(schema: Schema | None) -> tuple[str, ...]:
    """Returns the names of the required properties of an object."""
    found = (schema or {}).get("required")
    return tuple(name for name in found if isinstance(name, str)) if isinstance(found, list | tuple) else ()


def resolved(schema: Any, root: Schema) -> Schema:
    """Resolves references within `root`. An unresolvable one becomes a schema that allows everything."""
    seen: set[str] = set()
    while isinstance(schema, Mapping) and "$ref" in schema:
        path = schema["$ref"]
        if not isinstance(path, str) or not path.startswith("#/") or path in seen:
            return {}
        seen.add(path)
        schema = root
        for step in path[2:].split("/"):
            schema = schema.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def types(schema: Any, root: Schema) -> frozenset[str]:
    """Returns the types that `schema` allows."""
    return _types(schema, root, 0, set()) or ANY


def _types(schema: Any, root: Schema, depth: int, seen: set[int]) -> frozenset[str]:
    schema = resolved(schema, root)
    if depth >= MAX_DEPTH:
        return ANY
    if id(schema) in seen:
        return frozenset()  # already in the union; this also ends circular references
    seen.add(id(schema))
    named = schema.get("type")
    if isinstance(named, str | list):
        return frozenset({named} if isinstance(named, str) else (name for name in named if isinstance(name, str)))
    chosen = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(chosen, list):
        return frozenset(map(type_of, chosen))
    for keyword in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(keyword)
        if isinstance(parts, list) and parts:
            return frozenset[str]().union(*(_types(part, root, depth + 1, seen) for part in parts))
    return ANY


def type_of(value: object) -> str:
    """Returns the JSON type of a value."""
    if value is None:
        return "null"
    for python, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (dict, "object")):
        if isinstance(value, python):
            return name
    return "array"


def literal(text: str) -> str:
    """Returns a literal for the text."""
    return json.dumps(text, ensure_ascii=False)


def json_value(schema: Schema) -> str:
    """Returns a rule for JSON text that follows a schema."""
    return f"%json {json.dumps({**schema, 'x-guidance': {**schema.get('x-guidance', {}), **_JSON}})}"


def arguments_rule(shape: ToolShape) -> str:
    """Returns a rule for the JSON object of a tool's arguments."""
    return json_value(object_schema(shape))


def call_rule(shape: ToolShape, key: str) -> str:
    """Returns a rule for a call as a JSON object with its arguments under `key`."""
    head = f'{{"name": {json.dumps(shape.name, ensure_ascii=False)}, "{key}": '
    return f"{literal(head)} {arguments_rule(shape)} {literal('}')}"


def object_schema(shape: ToolShape) -> dict[str, Any]:
    """Returns the schema of a tool's arguments, which is an object even if the schema does not say so."""
    if shape.schema is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **shape.schema}


def numbered(rule: str, bodies: Sequence[str]) -> list[str]:
    """Returns `rule`, which is one of `bodies`, and a rule for each of them."""
    names = " | ".join(f"call_{number}" for number in range(len(bodies)))
    return [f"{rule}: {names}", *(f"call_{number}: {body}" for number, body in enumerate(bodies))]


def marked(opener: str, bodies: Sequence[str], between: str, *, required: bool, parallel: bool) -> str:
    """Returns a grammar of calls after a mark, each one of `bodies`. Unless required, text may surround the calls.

    `between` is the text between two calls if no other text is there.
    """
    rules = numbered("call_body", bodies)
    if required:
        more = f" ({literal(between + opener)} call_body)*" if parallel else ""
        return "\n".join([f"start: {literal(opener)} call_body{more}", *rules])
    # A lazy rule ends with the first mark; after it, only a call may follow.
    start = "start: (call_lead call_body)* call_prose" if parallel else "start: call_lead call_body | call_prose"
    lead = f"call_lead[lazy]: CALL_TEXT {literal(opener)}"
    return "\n".join([start, lead, "call_prose: CALL_TEXT", TEXT_RULE, *rules])


def listed(opener: str, closer: str, bodies: Sequence[str], *, required: bool, parallel: bool) -> str:
    """Returns a grammar like that of `marked`, with all calls as one list between a pair of marks."""
    rules = numbered("call_item", bodies)
    more = ' (", " call_item)*' if parallel else ""
    rules.insert(0, f"call_list: call_item{more} {literal(']' + closer)}")
    if required:
        return "\n".join([f"start: {literal(opener + '[')} call_list", *rules])
    lead = f"call_lead[lazy]: CALL_TEXT {literal(opener)}"
    return "\n".join(['start: call_lead "[" call_list | call_prose', lead, "call_prose: CALL_TEXT", TEXT_RULE, *rules])


def value_rules(shape: ToolShape, head: Callable[[str], str], after: str, rule: str) -> tuple[str, list[str]]:
    """Builds rules for arguments that are written separately. Returns a rule body and its rules, named after `rule`.

    `head` returns the text before an argument's value; the text `after` follows it. Strings are not quoted.
    Arguments are in the schema's order; additional ones are not allowed.
    """
    root = object_schema(shape)
    must = required(root)
    parts, rules = [], []
    for number, (name, schema) in enumerate(properties(root).items()):
        value = f"{rule}_{number}"
        rules.append(_value_rule(value, schema, root, after))
        part = f"{head(name)} {value}"
        parts.append(part if name in must else f"({part})?")
    return " ".join(parts), rules


def _value_rule(rule: str, schema: Any, root: Schema, after: str) -> str:
    """Returns a rule for a value and the text after it."""
    plain = resolved(schema, root)
    allowed = types(plain, root)
    if "string" not in allowed or allowed == ANY:
        definitions = {key: root[key] for key in _DEFINITIONS if key in root}
        return f"{rule}: {json_value({**definitions, **plain})} {literal(after)}"
    choices = [plain["const"]] if "const" in plain else plain.get("enum")
    if isinstance(choices, list):
        texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
        return f"{rule}: {' | '.join(literal(text + after) for text in texts)}"
    return f"{rule}[lazy]: {_bare_text(plain if allowed == STRING else {}, after)}"


def _bare_text(schema: Schema, after: str) -> str:
    """Returns a rule body for a bare string and the text after it. The first end mark ends it, as in the parser."""
    end = _escaped(after.strip())
    limits = [f"~/(?s:.*){end}(?s:.*)/"]
    least, most = (_count(schema.get(key)) for key in ("minLength", "maxLength"))
    if least or most is not None:
        limits.append(f"/(?s:.{{{least or 0},{'' if most is None else most}}})/")
    if isinstance(pattern := schema.get("pattern"), str):
        limits.append(f"/{_anywhere(pattern)}/")
    return f"(/(?s:.*)/ & {' & '.join(limits)}) {literal(after)}"


def _count(found: object) -> int | None:
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def _anywhere(pattern: str) -> str:
    """Converts a JSON Schema pattern, which may match anywhere in the text, to one for the whole text."""
    front = "" if pattern.startswith("^") else "(?s:.*)"
    back = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
    inner = pattern.removeprefix("^")
    inner = inner if back else inner.removesuffix("$")
    return f"{front}(?:{_escaped(inner)}){back}"


def _escaped(regex: str) -> str:
    """Escapes a regex for use between slashes."""
    return re.sub(r"(?<!\\)/", r"\\/", regex).replace("\n", "\\n")
