"""Mutates existing cases: bytes as in any file, and numbers, strings and brackets as in text."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NUMBERS = (
    *(b"0", b"-1", b"1", b"0.5", b"-0.0", b"1e308", b"1e400", b"-1e400", b"NaN", b"Infinity", b"null", b"true", b'""'),
    *(b"[]", b"{}", b"2147483647", b"2147483648", b"4294967296", b"9007199254740993", b"9223372036854775807"),
    *(
        b"9223372036854775808",
        b"18446744073709551616",
        b"1" * 40,
        b"9" * 5000,
        b"1e-400",
        b"00",
        b"1_0",
        b"\xef\xbc\x91",
    ),
)
_WORDS = (
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\\u0000",
        b"\xf0\x9f\x99\x82",
        b"\xe2\x80\xa8",
        b"\r\n",
        b"\n",
    ),
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"/", b"../", b"%", b"a" * 300, b" " * 300, b"__proto__"),
)
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        0.5,
        1e308,
        float("inf"),
        float("nan"),
        2**31,
        2**53 + 1,
        2**63,
        2**64,
        10**40,
        "",
        "a",
    ),
    *("\ud800", "\x00", "é", "a" * 5000, "../x", [], {}, [None], [[]], {"": None}, ["a", 1], {"a": {"a": {}}}),
)
_WIDTHS = (1, 2, 4, 8)
_NESTS = ((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b'{"type":"array","items":', b"}"), (b"<a>", b"</a>"))


class Mutator:
    """A stream of mutations, determined by its seed."""

    def __init__(self, seed: str | int, words: Sequence[bytes] = (), longest: int = 16 * 1024) -> None:
        self._chance = random.Random(seed)  # noqa: S311 (the same cases each time)
        self._words = (*_WORDS, *words, *words)
        self._longest = longest
        bytewise = (
            self._flip,
            self._put,
            self._extreme,
            self._delete,
            self._copy,
            self._cut,
            self._splice,
            self._repeat,
        )
        textwise = (self._repeat, self._insert_word, self._replace_word, self._number, self._nest, self._swap_strings)
        self._ways: tuple[Callable[[bytearray, bytes], None], ...] = (*bytewise, *textwise, *(self._document,) * 8)

    def mutated(self, case: bytes, other: bytes = b"") -> bytes:
        """Returns a case with one to six changes; parts of `other` may be inserted."""
        data = bytearray(case)
        for _ in range(self._chance.choice((1, 1, 1, 2, 3, 6))):
            self._chance.choice(self._ways)(data, other)
            del data[self._longest :]
        return bytes(data)

    def choose(self, cases: Sequence[bytes]) -> bytes:
        """Chooses one of the cases."""
        return self._chance.choice(cases)

    def _at(self, data: bytearray) -> int:
        """Returns a position, more often near the beginning, where headers are."""
        if self._chance.random() < 0.5:
            return self._chance.randint(0, len(data))
        return min(int(self._chance.expovariate(1 / 32)), len(data))

    def _flip(self, data: bytearray, _: bytes) -> None:
        if data:
            at = min(self._at(data), len(data) - 1)
            data[at] ^= 1 << self._chance.randrange(8)

    def _put(self, data: bytearray, _: bytes) -> None:
        if data:
            at = min(self._at(data), len(data) - 1)
            data[at] = self._chance.choice((0, 1, 0x7F, 0x80, 0xFF, self._chance.randrange(256)))

    def _extreme(self, data: bytearray, _: bytes) -> None:
        width = self._chance.choice(_WIDTHS)
        bits = 8 * width
        value = self._chance.choice((0, 1, 2, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, len(data)))
        at = self._at(data)
        data[at : at + width] = (value % (1 << bits)).to_bytes(width, self._chance.choice(("little", "big")))

    def _delete(self, data: bytearray, _: bytes) -> None:
        at = self._at(data)
        del data[at : at + self._chance.choice((1, 1, 2, 4, 8, 64, 512))]

    def _copy(self, data: bytearray, _: bytes) -> None:
        start = self._at(data)
        piece = data[start : start + self._chance.choice((1, 4, 16, 64, 512))]
        at = self._at(data)
        data[at:at] = piece

    def _insert_word(self, data: bytearray, _: bytes) -> None:
        at = self._at(data)
        data[at:at] = self._chance.choice(self._words)

    def _replace_word(self, data: bytearray, _: bytes) -> None:
        at, word = self._at(data), self._chance.choice(self._words)
        data[at : at + len(word)] = word

    def _cut(self, data: bytearray, _: bytes) -> None:
        del data[self._at(data) :]

    def _splice(self, data: bytearray, other: bytes) -> None:
        data[self._at(data) :] = other[self._chance.randint(0, len(other)) :]

    def _number(self, data: bytearray, _: bytes) -> None:
        """Replaces a number in text by another value."""
        found = list(_NUMBER.finditer(bytes(data)))
        if found:
            at = self._chance.choice(found)
            data[at.start() : at.end()] = self._chance.choice(_NUMBERS)

    def _nest(self, data: bytearray, _: bytes) -> None:
        """Nests a part inside itself, many times."""
        opener, closer = self._chance.choice(_NESTS)
        depth = self._chance.choice((2, 50, 101, 1000, 5000))
        start = self._at(data)
        end = min(len(data), start + self._chance.choice((0, 1, 16, 256)))
        whole = self._chance.random() < 0.5
        data[start:end] = opener * depth + data[start:end] + (closer * depth if whole else b"")

    def _repeat(self, data: bytearray, _: bytes) -> None:
        start = self._at(data)
        length = self._chance.choice((1, 2, 4, 16, 64))
        data[start : start + length] = data[start : start + length] * self._chance.choice((10, 100, 1000))

    def _swap_strings(self, data: bytearray, _: bytes) -> None:
        """Replaces a string of the case by another of its strings: a name where another one is expected."""
        found = list(re.finditer(rb'"[^"]{0,60}"', bytes(data)))
        if len(found) > 1:
            from_, to = self._chance.choice(found), self._chance.choice(found)
            data[to.start() : to.end()] = from_[0]

    def _document(self, data: bytearray, other: bytes) -> None:
        """Changes a JSON document and keeps it valid; a prefix, such as a file's name, stays too."""
        start = min((at for at in (data.find(b"{"), data.find(b"[")) if at >= 0), default=len(data))
        try:
            document = json.loads(bytes(data[start:]))
        except (ValueError, RecursionError):
            document = None
        places = list(_places(document))
        if not places:
            self._put(data, other)
            return
        holder, key = self._chance.choice(places)
        kind = self._chance.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            holder[key] = self._chance.choice(_VALUES)
        elif kind == 2:
            from_, at = self._chance.choice(places)
            holder[key] = copy.deepcopy(from_[at]) if at in from_ or isinstance(from_, list) else None
        elif kind == 3:
            holder[key] = self._chance.choice(([holder[key]], {"a": holder[key]}, {str(holder[key])[:50]: 1}))
        elif kind == 4 and isinstance(holder, list):
            holder *= self._chance.choice((2, 20, 150))
        elif isinstance(holder, dict):
            word = self._chance.choice(self._words).decode(errors="replace").strip('"')
            holder[word] = holder.pop(key)
        with contextlib.suppress(ValueError):  # too large a number, or the case contains itself
            data[start:] = json.dumps(document, ensure_ascii=False).encode(errors="surrogatepass")


def _places(document: object) -> Iterator[tuple[Any, Any]]:
    """Yields every object and list of a document with each of its keys."""
    waiting = [document]
    while waiting:
        found = waiting.pop()
        keys = list(found) if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ()
        for key in keys:
            yield found, key
            waiting.append(found[key])  # type: ignore[index]
