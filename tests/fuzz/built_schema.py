"""JSON Schemas built from arbitrary bytes: each byte is a choice, so that a mutation is still a schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_PARTS = 200
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_NUMBERS = (0, 1, -1, 2, 3, 0.5, 1e-9, 1e308, 10**18, 2**53 + 1, 2**63, 10**30, 200, 2000, 100_000)
_REGEX = (
    *("a", "[a-z]", ".", "\\d", "(a|b)", "(", ")", "*", "+", "?", "{2,5}", "{1000}", "{0,1000}", "|", "^", "$", "\\b"),
    *("(?=a)", "(?:x)", "\\1", "[^\\s]", "é", "\\p{L}", "/", "\n", "(?i)", "{99999999}"),
)
_FORMATS = ("date-time", "date", "uuid", "ipv6", "email", "uri", "regex", "hostname", "duration", "unknown")
_REFS = ("#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/$defs/none", "http://x/y", "#a", "#/$defs/a/properties/a")
_NAMES = ("a", "b", "", "c d", "$ref", "é", "x" * 200, "__proto__")


class _Builder:
    def __init__(self, choices: bytes) -> None:
        self._choices = iter(choices)
        self._parts = 0

    def choice(self, among: int) -> int:
        """Returns a number below `among`; 0 once the bytes are used up."""
        return next(self._choices, 0) % among

    def one(self, among: tuple[Any, ...]) -> Any:
        return among[self.choice(len(among))]

    def schema(self, depth: int = 0) -> Any:
        """Returns a schema of a few keywords."""
        self._parts += 1
        if self._parts > MOST_PARTS or depth > 12:
            return self.one((True, False, {}))
        found: dict[str, Any] = {"type": self.one(_TYPES)} if self.choice(4) else {}
        for _ in range(self.choice(5)):
            key = self.one(tuple(_KEYWORDS))
            found[key] = _KEYWORDS[key](self, depth + 1)
        return found

    def schemas(self, depth: int) -> list[Any]:
        return [self.schema(depth) for _ in range(1 + self.choice(4))]

    def named(self, depth: int) -> dict[str, Any]:
        found = {self.one(_NAMES): self.schema(depth) for _ in range(self.choice(5))}
        if not self.choice(16):
            found |= {f"p{at}": {"type": "string"} for at in range(self.one((50, 399, 500)))}
        return found

    def regex(self, _: int = 0) -> str:
        return "".join(self.one(_REGEX) for _ in range(1 + self.choice(12)))

    def value(self, depth: int = 0) -> Any:
        kind = self.choice(7)
        if kind > 4 and depth < 4:
            items = [self.value(depth + 1) for _ in range(self.choice(3))]
            return items if kind == 5 else {str(item): item for item in items}
        return (None, True, "text", self.one(_NUMBERS), self.one(_NAMES))[kind % 5]

    def number(self, _: int = 0) -> Any:
        return self.one(_NUMBERS)


_KEYWORDS: dict[str, Callable[[_Builder, int], Any]] = {
    "properties": _Builder.named,
    "$defs": lambda builder, depth: {"a": builder.schema(depth), "b": builder.schema(depth)},
    "patternProperties": lambda builder, depth: {builder.regex(): builder.schema(depth)},
    "additionalProperties": _Builder.schema,
    "propertyNames": _Builder.schema,
    "required": lambda builder, _: [builder.one(_NAMES) for _ in range(builder.choice(4))],
    "items": _Builder.schema,
    "prefixItems": _Builder.schemas,
    "contains": _Builder.schema,
    "anyOf": _Builder.schemas,
    "oneOf": _Builder.schemas,
    "allOf": _Builder.schemas,
    "not": _Builder.schema,
    "if": _Builder.schema,
    "then": _Builder.schema,
    "$ref": lambda builder, _: builder.one(_REFS),
    "pattern": _Builder.regex,
    "format": lambda builder, _: builder.one(_FORMATS),
    "enum": lambda builder, _: [builder.value() for _ in range(builder.choice(5))],
    "const": lambda builder, _: builder.value(),
    "multipleOf": _Builder.number,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _Builder.number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties"), _Builder.number),
    "uniqueItems": lambda builder, _: bool(builder.choice(2)),
    "x-guidance": lambda builder, _: {"lenient": True, "whitespace_pattern": builder.regex()},
}


def built_schema(choices: bytes) -> dict[str, Any]:
    """Returns a schema that is an object; equal bytes give equal schemas."""
    found = _Builder(choices).schema()
    return found if isinstance(found, dict) else {}
