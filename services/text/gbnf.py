"""GBNF, llama.cpp's language of grammars, translated to llguidance's Lark.

Format: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md. A GBNF grammar derives a text from single
characters. Lark first cuts the text into terminals, each as long as possible, and only then applies its rules. In the
translation every terminal is one character: then both allow the same texts.
"""

from __future__ import annotations

import re

MAX_NESTING = 64  # of groups; deeper ones would exhaust the stack
LAST = 0x10FFFF
_NAME = re.compile(r"[A-Za-z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_COUNT = re.compile(r"\{[ \t\r\n]*([0-9]{1,6})[ \t\r\n]*(?:(,)[ \t\r\n]*([0-9]{1,6})?[ \t\r\n]*)?\}")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_DIGITS = {"x": 2, "u": 4, "U": 8}


class GbnfError(Exception):
    """The text is no GBNF grammar; the message has the line."""


def lark_of(text: str) -> str:
    """Returns the grammar in Lark. Raises GbnfError."""
    return _Translation(text).result()


class _Translation:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._rules: dict[str, str] = {}  # GBNF's name -> body
        self._names: dict[str, str] = {}  # GBNF's name -> Lark's
        self._classes: dict[str, str] = {}  # regex of one character -> terminal

    def result(self) -> str:
        self._skip(lines=True)
        while self._at < len(self._text):
            self._rule()
        for name in ("root", *self._names):
            if name not in self._rules:
                raise GbnfError(f"there is no rule {name!r}")
        rules = [f"{self._names[name]}: {body}" for name, body in self._rules.items()]
        terminals = [f"{name}: /{regex}/" for regex, name in self._classes.items()]
        return "\n".join([f"start: {self._named('root')}", *rules, *terminals])

    def _rule(self) -> None:
        name = self._name()
        self._skip()
        if not self._text.startswith("::=", self._at):
            raise self._error("'::=' is expected")
        self._at += 3
        self._skip(lines=True)
        if name in self._rules:
            raise self._error(f"the rule {name!r} appears twice")
        self._named(name)
        self._rules[name] = self._alternatives(0)
        if self._next() not in ("", "\r", "\n"):
            raise self._error("the end of the line is expected")
        self._skip(lines=True)

    def _alternatives(self, depth: int) -> str:
        if depth > MAX_NESTING:
            raise self._error(f"groups are nested deeper than {MAX_NESTING}")
        found = [self._sequence(depth)]
        while self._next() == "|":
            self._at += 1
            self._skip(lines=True)
            found.append(self._sequence(depth))
        return " | ".join(found)

    def _sequence(self, depth: int) -> str:
        items: list[str] = []
        while item := self._item(depth):
            self._skip(lines=depth > 0)
            items.append(item + self._repeated())
            self._skip(lines=depth > 0)
        return " ".join(items) or '""'

    def _item(self, depth: int) -> str:
        char = self._next()
        if char == '"':
            return self._literal()
        if char == "[":
            return self._terminal(self._class())
        if char == ".":
            self._at += 1
            return self._terminal(f"[{_code(0)}-{_code(LAST)}]")
        if char == "(":
            self._at += 1
            self._skip(lines=True)
            inner = self._alternatives(depth + 1)
            if self._next() != ")":
                raise self._error("')' is expected")
            self._at += 1
            return f"({inner})"
        if char and char in "<!":
            raise self._error("tokens by name or number are not supported")
        return self._named(self._name()) if _NAME.match(self._text, self._at) else ""

    def _repeated(self) -> str:
        char = self._next()
        if char and char in "*+?":
            self._at += 1
            return char
        if char != "{":
            return ""
        count = _COUNT.match(self._text, self._at)
        if count is None:
            raise self._error("'{' is expected to begin a count like {2}, {2,} or {2,5}")
        self._at = count.end()
        least, comma, most = count.groups()
        if most and int(most) < int(least):
            raise self._error("the first number of a count is larger than the second")
        return f"{{{int(least)},{int(most) if most else ''}}}" if comma else f"{{{int(least)}}}"

    def _literal(self) -> str:
        self._at += 1
        chars: list[str] = []
        while (char := self._next()) != '"':
            if not char:
                raise self._error("a string has no closing quote")
            chars.append(self._terminal(f"[{_code(self._char())}]"))
        self._at += 1
        return f"({' '.join(chars)})" if chars else '""'

    def _class(self) -> str:
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        ranges = ""
        while (char := self._next()) != "]":
            if not char:
                raise self._error("a set of characters has no ']'")
            first = last = self._char()
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._char()
            if last < first:
                raise self._error("a range of characters is empty")
            ranges += _code(first) if first == last else f"{_code(first)}-{_code(last)}"
        self._at += 1
        if not ranges:
            raise self._error("a set of characters is empty")
        return f"[{'^' * negated}{ranges}]"

    def _char(self) -> int:
        """Reads one character, maybe escaped, and returns its code point."""
        char = self._next()
        self._at += 1
        if char != "\\":
            return ord(char)
        kind = self._next()
        self._at += 1
        if kind in _ESCAPES and kind:
            return ord(_ESCAPES[kind])
        size = _DIGITS.get(kind, 0)
        digits = self._text[self._at : self._at + size]
        if not size or not re.fullmatch(rf"[0-9A-Fa-f]{{{size}}}", digits):
            raise self._error("unknown escape sequence")
        self._at += size
        code = int(digits, 16)
        if code > LAST or 0xD800 <= code <= 0xDFFF:
            raise self._error("an escape sequence is not a valid character")
        return code

    def _terminal(self, regex: str) -> str:
        return self._classes.setdefault(regex, f"C{len(self._classes)}")

    def _named(self, name: str) -> str:
        return self._names.setdefault(name, f"r{len(self._names)}")

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise self._error("a rule's name is expected")
        self._at = found.end()
        return found[0]

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, *, lines: bool = False) -> None:
        found = (_SPACE_AND_LINES if lines else _SPACE).match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _error(self, problem: str) -> GbnfError:
        return GbnfError(f"line {self._text.count(chr(10), 0, self._at) + 1}: {problem}")


def _code(point: int) -> str:
    return f"\\x{{{point:X}}}"
