"""Whisper's tokens: text, markup and timestamps, for English models and models of 99 or 100 languages.

All of Whisper's vocabularies have one layout: text, the end of text, the start of transcript, the languages, the tasks
and other markup, and the timestamps. So the text tokens and the total number of tokens define everything.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import string
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import tiktoken

from services.audio.engine.languages import LANGUAGES
from services.worker.messages import EngineError

MULTILINGUAL = 51865  # tokens, or more; English-only models have one less
TIMESTAMPS = 1501  # 0 to 30 s in steps of 0.02 s
# GPT-2's words, within which byte pairs are merged; the same pattern as in the reference.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MARKUP = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
_END = "<|endoftext|>"
_UNSPACED = {"zh", "ja", "th", "lo", "my", "yue"}  # written without spaces between words
_NO_CHARACTER = "\ufffd"
# Symbols for sounds and speakers in subtitles. A model must not write them, as in the reference.
_SYMBOLS = list('"#()*+/:;<=>@[\\]^_`{|}~「」『』')
_SYMBOLS += ["<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]"]
_SYMBOLS += ["{{", "}}", "♪♪", "♪♪♪"]
_MUSIC = list("♩♪♫♬♭♮♯")  # possibly several tokens each, the first of which stands for nothing else


class WhisperVocabulary:
    """A model's tokens. Immutable after loading, so any thread may use it."""

    def __init__(self, pieces: list[bytes], size: int, source: str) -> None:
        """`pieces` are the bytes of the text tokens, `size` counts all tokens, `source` is named in errors.

        Raises:
            EngineError: MODEL_INVALID if these are not the tokens of a Whisper model.
        """
        count = size - len(pieces) - 2 - len(_MARKUP) - TIMESTAMPS
        ranks: dict[bytes, int] = {}
        for token, piece in enumerate(pieces):
            ranks.setdefault(piece, token)
        if not 1 <= count <= len(LANGUAGES) or any(bytes([byte]) not in ranks for byte in range(256)):
            message = (
                f"{source} is not the vocabulary of a Whisper model of {size} tokens: it has {len(pieces)} text tokens"
            )
            raise EngineError("MODEL_INVALID", message)
        self.size = size
        self.multilingual = size >= MULTILINGUAL
        self.eot = len(pieces)
        self.sot = self.eot + 1
        codes = list(islice(LANGUAGES, count))
        self.languages: list[str] = codes if self.multilingual else ["en"]
        self._language_tokens = {code: self.sot + 1 + index for index, code in enumerate(codes)}
        first = self.sot + 1 + count
        self.translate, self.transcribe, self.sot_lm, self.sot_prev, self.no_speech, self.no_timestamps = range(
            first, first + len(_MARKUP)
        )
        self.timestamp_begin = self.no_timestamps + 1
        names = [f"<|{name}|>" for name in ("endoftext", "startoftranscript", *codes, *_MARKUP)]
        self._names = names + [f"<|{index * 0.02:.2f}|>" for index in range(TIMESTAMPS)]
        self._pieces = pieces
        self._encoding = tiktoken.Encoding(source, pat_str=_WORDS, mergeable_ranks=ranks, special_tokens={})
        self.blank = tuple(sorted({*self.encode(" "), self.eot}))  # never the first token of an answer
        self.suppressed = self._suppressed()  # never a token of an answer

    def start(self, language: str, task: str) -> list[int]:
        """Returns the start of transcript: [sot], and, if multilingual, the language and the task."""
        if not self.multilingual:
            return [self.sot]
        return [self.sot, self._language_tokens[language], self.translate if task == "translate" else self.transcribe]

    def language_token(self, language: str) -> int:
        """Returns the token of a language; raises KeyError if there is none."""
        return self._language_tokens[language]

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text; names of special tokens in it are plain text."""
        return self._encoding.encode_ordinary(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens; special tokens, timestamps and parts of characters add nothing."""
        return b"".join(map(self.piece, tokens)).decode(errors="ignore")

    def piece(self, token: int) -> bytes:
        """Returns the bytes of one text token, which may be only part of a character; b"" for other tokens."""
        return self._pieces[token] if 0 <= token < self.eot else b""

    def name(self, token: int) -> str:
        """Returns the name of a special token."""
        return self._names[token - self.eot]

    def names(self) -> list[str]:
        """Returns all tokens in the order of ids, their bytes written as GPT-2 writes them."""
        letters = {byte: letter for letter, byte in _BYTES.items()}
        return ["".join(map(letters.__getitem__, piece)) for piece in self._pieces] + self._names

    def split_words(self, tokens: Sequence[int], language: str) -> tuple[list[str], list[list[int]]]:
        """Returns the words of text tokens, with the space before each, and the tokens of each.

        Words end at spaces; in languages without spaces, after every character. Special tokens are words.
        """
        words, groups = self._split_characters(tokens)
        if language not in _UNSPACED:
            words, groups = self._join_words(words, groups)
        return [word.replace(_NO_CHARACTER, "") for word in words], groups

    def check_names(self, names: dict[str, int], source: str) -> None:
        """Compares the layout with the names that `source` gives to special tokens.

        Raises:
            EngineError: MODEL_INVALID if one has another id.
        """
        for name in ("<|startoftranscript|>", "<|transcribe|>", "<|notimestamps|>", "<|0.00|>", "<|30.00|>"):
            wanted = self.eot + self._names.index(name)
            if names.get(name, wanted) != wanted:
                message = f"{source}: {name} is token {names[name]}, expected {wanted}"
                raise EngineError("MODEL_INVALID", message)

    def _split_characters(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """Returns the shortest runs of tokens that are whole characters."""
        words: list[str] = []
        groups: list[list[int]] = []
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        text = ""
        group: list[int] = []
        for token in tokens:
            special = token >= self.eot
            if special and group:  # of an incomplete character
                words.append(text + decoder.decode(b"", final=True))
                groups.append(group)
                text, group = "", []
            text += self.name(token) if special else decoder.decode(self._pieces[token])
            group.append(token)
            if special or not decoder.getstate()[0]:
                words.append(text)
                groups.append(group)
                text, group = "", []
        if group:
            words.append(text + decoder.decode(b"", final=True))
            groups.append(group)
        return words, groups

    def _join_words(self, parts: list[str], groups: list[list[int]]) -> tuple[list[str], list[list[int]]]:
        words: list[str] = []
        joined: list[list[int]] = []
        for part, group in zip(parts, groups, strict=True):
            alone = group[0] >= self.eot or part.startswith(" ") or part.strip() in string.punctuation
            if alone or not words:
                words.append(part)
                joined.append(list(group))
            else:
                words[-1] += part
                joined[-1] += group
        return words, joined

    def _suppressed(self) -> tuple[int, ...]:
        found = {self.encode(" -")[0], self.encode(" '")[0]}  # allowed inside a word, not at its start
        for symbol in _SYMBOLS + _MUSIC:
            for text in (symbol, " " + symbol):
                tokens = self.encode(text)
                if len(tokens) == 1 or symbol in _MUSIC:
                    found.add(tokens[0])
        found |= {self.transcribe, self.translate, self.sot, self.sot_prev, self.sot_lm, self.no_speech}
        return tuple(sorted(found))


def converted_vocabulary(folder: Path) -> WhisperVocabulary:
    """Reads the vocabulary of a CTranslate2 folder: vocabulary.json or .txt, every token in the order of ids.

    Raises:
        EngineError: MODEL_INVALID if it is missing, or not that of a Whisper model.
    """
    path = folder / "vocabulary.json"
    if path.is_file():
        names = _read_json(path)
    else:
        path = folder / "vocabulary.txt"
        names = _read(path).removesuffix("\n").split("\n")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or _END not in names:
        raise EngineError("MODEL_INVALID", f"{path} is not a list of tokens with {_END} in it")
    end = names.index(_END)
    vocabulary = WhisperVocabulary(_pieces(names[:end], path), len(names), str(path))
    vocabulary.check_names({name: token for token, name in enumerate(names) if token >= end}, str(path))
    return vocabulary


def tokenizer_vocabulary(folder: Path, size: int) -> WhisperVocabulary:
    """Reads the vocabulary of a transformers folder: tokenizer.json, for a model of `size` tokens.

    Raises:
        EngineError: MODEL_INVALID if it is missing, or not that of such a model.
    """
    path = folder / "tokenizer.json"
    document = _read_json(path)
    try:
        ids: dict[str, int] = dict(document["model"]["vocab"])
        ids |= {added["content"]: added["id"] for added in document.get("added_tokens", [])}
        end = ids[_END]
        names = dict.fromkeys(range(min(end, size)), "")
        names |= {token: name for name, token in ids.items() if token < end}
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError("MODEL_INVALID", f"{path} is not a tokenizer of a Whisper model: {error!r}") from error
    vocabulary = WhisperVocabulary(_pieces(list(names.values()), path), size, str(path))
    vocabulary.check_names(ids, str(path))
    return vocabulary


def package_vocabulary(assets: Path, size: int) -> WhisperVocabulary:
    """Reads openai-whisper's `assets` folder for a model of `size` tokens: its checkpoints hold no vocabulary.

    Raises:
        EngineError: MODEL_INVALID if no such model has `size` tokens.
    """
    path = assets / ("multilingual.tiktoken" if size >= MULTILINGUAL else "gpt2.tiktoken")
    pieces: list[bytes] = []
    for line in _read(path).splitlines():
        word = line.split()
        try:
            pieces.append(base64.b64decode(word[0]) if len(word) == 2 else b"")
        except binascii.Error:
            pieces.append(b"")  # the one empty token is spelled "="
    return WhisperVocabulary(pieces, size, f"{path.name} of the package openai-whisper")


def _pieces(names: list[str], path: Path) -> list[bytes]:
    try:
        return [bytes(map(_BYTES.__getitem__, name)) for name in names]
    except (KeyError, TypeError) as error:  # a name may not be a string
        raise EngineError("MODEL_INVALID", f"{path}: {error.args[0]!r} is not a byte of a token") from None


def _byte_alphabet() -> dict[str, int]:
    """Returns GPT-2's printable characters and their bytes: unprintable bytes get characters after the others."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise EngineError("MODEL_INVALID", f"{path} is not JSON: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EngineError("MODEL_INVALID", f"{path} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError("MODEL_INVALID", f"{path} cannot be read: {error}") from error
