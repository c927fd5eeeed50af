"""YAML values with their positions, so that errors can name the line. JSON is a subset of YAML.

Only the nodes of a document are built, never objects: the caller determines each value's type. A revision `1e5` stays
text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

import yaml

MAX_DEPTH = 16  # of nested mappings and lists
_CORE = "tag:yaml.org,2002:"
_SCALARS = frozenset(_CORE + kind for kind in ("str", "int", "float", "bool", "null", "timestamp"))
_FLAGS = {"true": True, "false": False}


class Wrong(Exception):
    """An error in a document. `line` counts from 1; 0: no particular line."""

    def __init__(self, line: int, key: str, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.key = key  # as in `models[2].aliases`; empty: the whole document
        self.message = message


@dataclass(frozen=True, slots=True)
class Marked:
    """A value of a document. All its methods raise Wrong if it has another type."""

    node: yaml.Node
    key: str

    @property
    def line(self) -> int:
        """The line where it begins, from 1."""
        return int(self.node.start_mark.line) + 1

    @property
    def empty(self) -> bool:
        """True for a null value: `key:`, `null` or `~`."""
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag == f"{_CORE}null"

    def fields(self, allowed: tuple[str, ...]) -> dict[str, Marked]:
        """Returns a mapping's values without the null ones. Raises Wrong for a key that is not allowed."""
        found = self._pairs()
        for name, value in found.items():
            if name not in allowed:
                raise Wrong(value.line, value.key, f"unknown key {name[:100]!r}; the keys are {', '.join(allowed)}")
        return {name: value for name, value in found.items() if not value.empty}

    def peek(self, name: str) -> str:
        """Returns the text under a key, ignoring all errors of the mapping; empty: there is none."""
        for key, value in self.node.value if isinstance(self.node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value == name and isinstance(value, yaml.ScalarNode):
                return "" if value.tag == f"{_CORE}null" else str(value.value)
        return ""

    def items(self, most: int) -> list[Marked]:
        """Returns the values of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            self._fail("must be a list")
        if len(self.node.value) > most:
            self._fail(f"may have at most {most} entries, but has {len(self.node.value)}")
        return [Marked(node, f"{self.key}[{number}]") for number, node in enumerate(self.node.value)]

    def text(self) -> str:
        """Returns a text; an unquoted number counts as the text that is written."""
        return str(self._scalar("a string").value)

    def flag(self) -> bool:
        """Returns `true` or `false` as a bool."""
        value = self._plain("true or false").value.lower()
        if value not in _FLAGS:
            self._fail("must be true or false")
        return _FLAGS[value]

    def integer(self) -> int:
        """Returns an integer."""
        try:
            return int(self._plain("a whole number").value)
        except ValueError:
            self._fail("must be a whole number")

    def number(self) -> float:
        """Returns a finite number."""
        try:
            value = float(self._plain("a number").value)
        except ValueError:
            self._fail("must be a number")
        if not math.isfinite(value):
            self._fail("must be a finite number")
        return value

    def _pairs(self) -> dict[str, Marked]:
        if not isinstance(self.node, yaml.MappingNode):
            self._fail("must be a mapping of keys to values")
        found: dict[str, Marked] = {}
        for key, value in self.node.value:
            line = int(key.start_mark.line) + 1
            if not isinstance(key, yaml.ScalarNode):
                raise Wrong(line, self.key, "a key must be a word")
            name = str(key.value)
            if name in found:
                raise Wrong(line, found[name].key, f"the key {name[:100]!r} appears twice")
            found[name] = Marked(value, f"{self.key}.{name[:100]}" if self.key else name[:100])
        return found

    def _scalar(self, what: str) -> yaml.ScalarNode:
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag not in _SCALARS or self.empty:
            self._fail(f"must be {what}")
        return self.node

    def _plain(self, what: str) -> yaml.ScalarNode:
        """Returns an unquoted scalar: a quoted one is text."""
        node = self._scalar(what)
        if node.style is not None:
            self._fail(f"must be {what}, without quotes")
        return node

    def _fail(self, what: str) -> NoReturn:
        raise Wrong(self.line, self.key, f"{self.key or 'the document'} {what}")


def read_yaml(text: str) -> Marked:
    """Parses a text that holds one document.

    Raises:
        Wrong: the text is empty, not YAML, nested too deeply, or has aliases (`*name`), which could grow without end.
    """
    try:
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(filter(None, (error.context, error.problem)))
        raise Wrong(mark.line + 1 if mark else 0, "", f"it cannot be read as YAML: {what}") from error
    except yaml.YAMLError as error:  # characters that YAML does not allow
        raise Wrong(0, "", f"it cannot be read as YAML: {str(error).splitlines()[0]}") from error
    if node is None:
        raise Wrong(0, "", "it is empty")
    return Marked(node, "")


class _Loader(yaml.SafeLoader):
    """A loader that builds nodes, with a limited depth."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Builds the next node."""
        if self.check_event(yaml.AliasEvent):
            self._refuse("aliases (*name) are not supported")
        if self._depth >= MAX_DEPTH:
            self._refuse(f"mappings and lists may be nested at most {MAX_DEPTH} levels deep")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def _refuse(self, what: str) -> NoReturn:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        raise yaml.MarkedYAMLError(problem=what, problem_mark=event.start_mark)
