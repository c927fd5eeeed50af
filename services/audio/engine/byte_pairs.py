"""GPT-2's byte pair encoding, shared by Whisper's models: text to tokens, for vocabularies whose token ids are their
ranks among the merges."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping

# Runs of letters without a space, as in Chinese, are merged in chunks of this size: merging takes quadratic time.
_WORD_BYTES = 512
_ENDINGS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
# Unicode's White_Space; Python's `str.isspace` accepts four more control characters.
_SPACES = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(0x2000 + i) for i in range(11)}
# Splits text into words before merging; matched on a copy that holds only the kind of each character (`_kind`).
_WORDS = re.compile(r" ?a+| ?1+| ?[.]+|[ _]+(?![^ _])|[ _]+")


class BytePairs:
    """An encoder of text. Immutable after loading, so any thread may use it."""

    def __init__(self, ranks: Mapping[bytes, int]) -> None:
        """`ranks` maps the bytes of every token to its id; it contains all single bytes."""
        self._ranks = ranks

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of `text`; names of special tokens in it are plain text."""
        tokens: list[int] = []
        for word in _words(text):
            data = word.encode(errors="replace")
            for at in range(0, len(data), _WORD_BYTES):
                tokens += self._merge(data[at : at + _WORD_BYTES])
        return tokens

    def _merge(self, word: bytes) -> list[int]:
        """Merges the neighbours of the lowest rank until no two neighbours form a token."""
        if (whole := self._ranks.get(word)) is not None:
            return [whole]
        none = len(self._ranks) + 1
        parts = [word[at : at + 1] for at in range(len(word))]
        pairs = [self._ranks.get(word[at : at + 2], none) for at in range(len(word) - 1)]
        while pairs and (rank := min(pairs)) < none:
            at = pairs.index(rank)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            del pairs[at]
            for pair in (at - 1, at):  # both adjacent pairs have changed
                if 0 <= pair < len(pairs):
                    pairs[pair] = self._ranks.get(parts[pair] + parts[pair + 1], none)
        return [self._ranks[part] for part in parts]


def _words(text: str) -> Iterator[str]:
    kinds = "".join(map(_kind, text))
    at = 0
    while at < len(text):
        end = 0
        if text[at] == "'":
            end = next((at + len(ending) for ending in _ENDINGS if text.startswith(ending, at)), 0)
        if not end:
            found = _WORDS.match(kinds, at)
            end = found.end() if found else at + 1
        yield text[at:end]
        at = end


def _kind(character: str) -> str:
    if character == " ":
        return " "
    if character in _SPACES:
        return "_"
    category = unicodedata.category(character)[0]
    return {"L": "a", "N": "1"}.get(category, ".")
