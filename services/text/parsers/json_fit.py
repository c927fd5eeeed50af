"""Whether a JSON value fits a caller's JSON Schema, within a fixed amount of work.

Keywords of JSON Schema 2020-12 that need a regular expression or a search (`pattern`, `patternProperties`, `format`,
`contains`, `uniqueItems`, `unevaluated...`) are not checked: a caller's expression may run without end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.text.parsers.tool_grammar import resolved, type_of

MAX_STEPS = 20_000  # values and schemas that are compared; beyond them nothing fits
MAX_DEPTH = 64


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Returns True if `value` fits `schema`, as far as it is checked. Malformed keywords allow everything."""
    return _Fit(schema).fits(value, schema, 0)


class _Fit:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps = 0

    def fits(self, value: Any, schema: Any, depth: int) -> bool:
        self._steps += 1
        if self._steps > MAX_STEPS or depth > MAX_DEPTH:
            return False
        if schema is False:
            return False
        if not isinstance(schema, Mapping):
            return True
        if "$ref" in schema:
            target = self._root if schema["$ref"] == "#" else resolved(schema, self._root)
            if not self.fits(value, target, depth + 1):
                return False
        return (
            _has_type(value, schema.get("type"))
            and self._is_chosen(value, schema)
            and self._combined(value, schema, depth)
            and _has_size(value, schema)
            and self._parts_fit(value, schema, depth)
        )

    def _is_chosen(self, value: Any, schema: Mapping[str, Any]) -> bool:
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(choices, list):
            return True
        self._steps += len(choices)
        return any(_is_number(choice) == _is_number(value) and choice == value for choice in choices)

    def _combined(self, value: Any, schema: Mapping[str, Any], depth: int) -> bool:
        def count(keyword: str) -> int:
            return sum(self.fits(value, each, depth + 1) for each in schema[keyword])

        wanted: dict[str, Callable[[int, int], bool]] = {
            "allOf": lambda found, all_of_them: found == all_of_them,
            "anyOf": lambda found, _: found > 0,
            "oneOf": lambda found, _: found == 1,
        }
        for keyword, enough in wanted.items():
            given = schema.get(keyword)
            if isinstance(given, list) and given and not enough(count(keyword), len(given)):
                return False
        if "not" in schema and self.fits(value, schema["not"], depth + 1):
            return False
        if "if" in schema:
            branch = "then" if self.fits(value, schema["if"], depth + 1) else "else"
            return self.fits(value, schema.get(branch, True), depth + 1)
        return True

    def _parts_fit(self, value: Any, schema: Mapping[str, Any], depth: int) -> bool:
        if isinstance(value, dict):
            return self._properties_fit(value, schema, depth)
        if not isinstance(value, list):
            return True
        first = schema.get("prefixItems")
        first = first if isinstance(first, list) else []
        rest = schema.get("items", True)
        return all(self.fits(item, first[at] if at < len(first) else rest, depth + 1) for at, item in enumerate(value))

    def _properties_fit(self, value: dict[str, Any], schema: Mapping[str, Any], depth: int) -> bool:
        required = schema.get("required")
        if isinstance(required, list) and any(isinstance(name, str) and name not in value for name in required):
            return False
        named = schema.get("properties")
        named = named if isinstance(named, Mapping) else {}
        # Names that only a pattern allows are not known here.
        others = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
        return all(self.fits(item, named.get(name, others), depth + 1) for name, item in value.items())


def _has_type(value: Any, wanted: Any) -> bool:
    names = wanted if isinstance(wanted, list) else [wanted]
    if wanted is None:
        return True
    kind = type_of(value)
    whole = isinstance(value, float) and value.is_integer()
    return kind in names or (kind == "integer" and "number" in names) or (whole and "integer" in names)


def _has_size(value: Any, schema: Mapping[str, Any]) -> bool:
    if _is_number(value):
        return _is_within(value, schema)
    for kind, low, high in (
        (str, "minLength", "maxLength"),
        (list, "minItems", "maxItems"),
        (dict, "minProperties", "maxProperties"),
    ):
        if isinstance(value, kind):
            return _is_within(len(value), {"minimum": schema.get(low), "maximum": schema.get(high)})
    return True


def _is_within(value: float, schema: Mapping[str, Any]) -> bool:
    tests: Sequence[tuple[str, Callable[[float, float], bool]]] = (
        ("minimum", lambda a, b: a >= b),
        ("maximum", lambda a, b: a <= b),
        ("exclusiveMinimum", lambda a, b: a > b),
        ("exclusiveMaximum", lambda a, b: a < b),
        ("multipleOf", lambda a, b: b <= 0 or math.isclose(a, round(a / b) * b)),
    )
    try:
        return all(test(value, schema[key]) for key, test in tests if _is_number(schema.get(key)))
    except OverflowError:  # too large for a float
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
