"""Builders of tool call grammars in llguidance's Lark dialect.

Rule names start with `call` (except `start`), terminals with `CALL`. Most dialects write marks as text, which matches
both a token for the whole mark and the tokens of its parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from services.text.parsers.tool_schema import ANY, STRING, Schema, ToolShape, properties, required, resolved, types

TEXT = r"CALL_TEXT: /(?s:.*)/"
# Models learn JSON with and without these spaces. More are not allowed: at high temperatures models write only spaces.
_JSON = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_DEFINITIONS = ("$defs", "definitions")


def literal(text: str) -> str:
    """Returns a literal for the text."""
    return json.dumps(text, ensure_ascii=False)


def json_value(schema: Schema) -> str:
    """Returns a rule for JSON text that follows a schema."""
    return f"%json {json.dumps({**schema, 'x-guidance': {**schema.get('x-guidance', {}), **_JSON}})}"


def arguments(shape: ToolShape) -> str:
    """Returns a rule for the JSON object of a tool's arguments."""
    return json_value(object_schema(shape))


def call_object(shape: ToolShape, key: str) -> str:
    """Returns a rule for a call as a JSON object with its arguments under `key`."""
    head = f'{{"name": {json.dumps(shape.name, ensure_ascii=False)}, "{key}": '
    return f"{literal(head)} {arguments(shape)} {literal('}')}"


def object_schema(shape: ToolShape) -> dict[str, Any]:
    """Returns the schema of a tool's arguments, which is an object even if the schema does not say so."""
    if shape.schema is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **shape.schema}


def marked(opener: str, bodies: Sequence[str], between: str, *, required: bool, parallel: bool) -> str:
    """Returns a grammar of calls after a mark, each one of `bodies`. Unless required, text may surround the calls.

    `between` is the text between two calls if no other text is there.
    """
    rules = [f"call_body: {' | '.join(f'call_{number}' for number in range(len(bodies)))}"]
    rules += [f"call_{number}: {body}" for number, body in enumerate(bodies)]
    if required:
        more = f" ({literal(between + opener)} call_body)*" if parallel else ""
        return "\n".join([f"start: {literal(opener)} call_body{more}", *rules])
    # A lazy rule ends with the first mark; after it, only a call may follow.
    start = "start: (call_lead call_body)* call_prose" if parallel else "start: call_lead call_body | call_prose"
    lead = f"call_lead[lazy]: CALL_TEXT {literal(opener)}"
    return "\n".join([start, lead, "call_prose: CALL_TEXT", TEXT, *rules])


def listed(opener: str, closer: str, bodies: Sequence[str], *, required: bool, parallel: bool) -> str:
    """Returns a grammar like that of `marked`, with all calls as one list between a pair of marks."""
    rules = [f"call_item: {' | '.join(f'call_{number}' for number in range(len(bodies)))}"]
    rules += [f"call_{number}: {body}" for number, body in enumerate(bodies)]
    more = ' (", " call_item)*' if parallel else ""
    rules.insert(0, f"call_list: call_item{more} {literal(']' + closer)}")
    if required:
        return "\n".join([f"start: {literal(opener + '[')} call_list", *rules])
    lead = f"call_lead[lazy]: CALL_TEXT {literal(opener)}"
    return "\n".join(['start: call_lead "[" call_list | call_prose', lead, "call_prose: CALL_TEXT", TEXT, *rules])


def named_values(shape: ToolShape, head: Callable[[str], str], after: str, rule: str) -> tuple[str, list[str]]:
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
