"""A safetensors model's tokenizer: text to token ids, and the bytes of single tokens.

The tokenizers library itself reads `tokenizer.json`. transformers' classes rebuild some tokenizers from their
vocabulary and lose the file's other settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from services.text.engine.constraint import MARKS, Constraint, GrammarCompiler, Vocabulary
from services.worker.messages import EngineError

# Control tokens that end a turn regardless of the metadata: many checkpoints name only one of several.
_END_NAMES = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<eos>",
        "</s>",
        "<|EOT|>",
    }
)
# Names that end only a message, not a turn, if the vocabulary also has the second name.
_GOES_ON = {"<|end|>": "<|return|>"}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

# Tokens of models that fill in, in the order prefix, suffix, middle: Qwen2.5-Coder, StarCoder, CodeLlama and
# DeepSeek-Coder, whose second token marks the hole.
_INFILL = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 (their own characters)
)


class TokenVocabulary:
    """A model's tokens. Thread-safe."""

    def __init__(self, folder: Path, size: int, model_ends: frozenset[int]) -> None:
        """Reads the tokenizer in `folder` of a model with `size` tokens and end-of-turn tokens `model_ends`.

        Raises:
            EngineError: MODEL_INVALID if the tokenizer is missing, unreadable or larger than the model.
        """
        self.size = size
        settings = read_json(folder / "tokenizer_config.json", optional=True)
        self._tokenizer = _read_tokenizer(folder, settings)
        _check_size(self._tokenizer, folder, size)
        self._added = self._tokenizer.get_added_tokens_decoder()
        self._control = frozenset(token for token, added in self._added.items() if added.special)
        self.bos = _spelled(settings.get("bos_token"))
        self.eos = _spelled(settings.get("eos_token"))
        bos = self._tokenizer.token_to_id(self.bos) if self.bos else None
        self.bos_token: int | None = bos
        self.add_bos = bos is not None and self._tokenizer.encode("", add_special_tokens=True).ids[:1] == [bos]
        self.ends = self._ends(model_ends)
        self._as_bytes = _byte_reader(self._tokenizer)
        self._pieces: dict[int, bytes] = {}

    def tokenize(self, text: str) -> list[int]:
        """Returns the token ids of `text`, with BOS if the model adds it. Special tokens become one id each."""
        ids = self.plain(text)
        return [self.bos_token, *ids] if self.add_bos and self.bos_token is not None else ids

    def plain(self, text: str) -> list[int]:
        """Returns the token ids of a part of a text, without BOS. Special tokens become one id each."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        beyond = max(ids, default=0)
        if beyond >= self.size:  # an added token beyond the embeddings
            raise EngineError("MODEL_INVALID", f"the prompt has token {beyond}; the model knows 0 to {self.size - 1}")
        return ids

    @property
    def infill(self) -> tuple[int, int, int] | None:
        """The tokens for filling in: before the prompt, before the suffix, before the answer; None: there are none."""
        for names in _INFILL:
            first, second, last = (self._tokenizer.token_to_id(name) for name in names)
            if first is not None and second is not None and last is not None:
                return first, second, last
        return None

    def is_control(self, token: int) -> bool:
        """Returns True if the token is a control token."""
        return token in self._control

    def is_markup(self, token: int) -> bool:
        """Returns True if a token is markup and not text. Grammars match markup only by its name."""
        added = self._added.get(token)
        if added is None:
            return False
        name = str(added.content)
        if not added.special:
            return name.startswith("<|") and name.endswith("|>")
        return not MARKS.fullmatch(name.encode())

    def text_of(self, token: int) -> bytes:
        """Returns a token's bytes, or a control token's name; empty for ids without a token."""
        added = self._added.get(token)
        if added is not None:
            return str(added.content).encode()
        name = self._tokenizer.id_to_token(token)
        return b"" if name is None else self._as_bytes(name)

    def piece(self, token: int, special: bool) -> bytes:
        """Returns the bytes that a token adds to a text: empty for ends, and for control tokens unless `special`."""
        if token in self.ends or (not special and self.is_control(token)):
            return b""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self.text_of(token)
        return found

    def grammar_compiler(self) -> GrammarCompiler:
        """Creates the grammar compiler for these tokens, which reads the whole vocabulary."""
        texts = [self.text_of(token) for token in range(self.size)]
        control = [token for token in range(self.size) if self.is_markup(token)]
        return GrammarCompiler(Vocabulary(texts, control, sorted(self.ends), self.tokenize))

    def _ends(self, model_ends: frozenset[int]) -> frozenset[int]:
        """Collects the tokens that end a turn: by the model's metadata, the tokenizer's, and their names."""
        ends = set(model_ends)
        names = {str(self._added[token].content): token for token in self._control}
        if self.eos in names:
            ends.add(names[self.eos])
        for name in _END_NAMES & names.keys():
            if _GOES_ON.get(name) not in names:
                ends.add(names[name])
        return frozenset(token for token in ends if 0 <= token < self.size)


def chat_template(folder: Path) -> str:
    """Returns the model's chat template, or an empty string. Combines separate templates with and without tools."""
    templates = _named_templates(folder)
    plain = templates.get("default", "")
    tools = templates.get("tool_use", "")
    if plain and tools:
        return f"{{%- if tools %}}{tools}{{%- else %}}{plain}{{%- endif %}}"
    return plain or tools


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Reads a JSON object. An absent optional file gives an empty one. Raises EngineError MODEL_INVALID."""
    if optional and not path.is_file():
        return {}
    try:
        content = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise EngineError("MODEL_INVALID", f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise EngineError("MODEL_INVALID", f"{path} is not a JSON object")
    return content


def end_tokens(settings: Mapping[str, Any]) -> set[int]:
    """Returns the `eos_token_id` of a configuration, which is a number, a list or absent, as a set."""
    found = settings.get("eos_token_id")
    return {int(token) for token in (found if isinstance(found, list) else [found]) if isinstance(token, int)}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise EngineError("MODEL_INVALID", f"{path} cannot be read: {error}") from error


def _named_templates(folder: Path) -> dict[str, str]:
    """Returns the chat templates by name. Separate files take precedence over the tokenizer's configuration."""
    templates: dict[str, str] = {}
    for source in (read_json(folder / name, optional=True) for name in ("tokenizer_config.json", "chat_template.json")):
        found = source.get("chat_template")
        if isinstance(found, str):
            templates["default"] = found
        elif isinstance(found, list):
            templates |= {str(each.get("name")): str(each.get("template")) for each in found if isinstance(each, dict)}
    files = {"default": folder / "chat_template.jinja"}
    files["tool_use"] = folder / "additional_chat_templates" / "tool_use.jinja"
    for name, path in files.items():
        if path.is_file():
            templates[name] = _read_text(path)
    return templates


def _read_tokenizer(folder: Path, settings: Mapping[str, Any]) -> Tokenizer:
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower type
        raise EngineError("MODEL_INVALID", f"{path} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Older checkpoints name some tokens only in the configuration.
    known = tokenizer.get_added_tokens_decoder()
    for token, entry in _added(settings, folder):
        name = str(entry.get("content", ""))
        if token not in known and tokenizer.token_to_id(name) in (None, token):
            added = AddedToken(name, special=bool(entry.get("special")), normalized=bool(entry.get("normalized")))
            (tokenizer.add_special_tokens if added.special else tokenizer.add_tokens)([added])
    return tokenizer


def _added(settings: Mapping[str, Any], folder: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """Returns the added tokens that the configuration names, ordered by id."""
    found = settings.get("added_tokens_decoder") or {}
    try:
        entries = sorted(((int(token), entry) for token, entry in found.items()), key=lambda item: item[0])
        if all(isinstance(entry, dict) for _, entry in entries):
            return entries
    except (AttributeError, ValueError):
        pass
    raise EngineError("MODEL_INVALID", f"{folder.name}: added_tokens_decoder in tokenizer_config.json names no tokens")


def _check_size(tokenizer: Tokenizer, folder: Path, size: int) -> None:
    """Checks that the vocabulary fits the embeddings. Added tokens may exceed them, because their use is optional."""
    highest = max(tokenizer.get_vocab(with_added_tokens=False).values(), default=-1)
    if highest >= size:
        message = f"{folder.name}: tokenizer.json has tokens up to {highest}, but config.json says vocab_size {size}"
        raise EngineError("MODEL_INVALID", message)


def _spelled(token: object) -> str:
    """Returns the text of a special token, which the configuration gives as a string or an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _byte_reader(tokenizer: Tokenizer) -> Any:
    """Returns the function that decodes token names to bytes: GPT-2's alphabet or SentencePiece's."""
    description = json.loads(tokenizer.to_str())
    kinds = {
        kind
        for part in ("decoder", "pre_tokenizer")
        for each in [description.get(part) or {}]
        for kind in [
            each.get("type"),
            *(one.get("type") for one in each.get("decoders", each.get("pretokenizers", []))),
        ]
    }
    return _from_alphabet if "ByteLevel" in kinds else _from_sentence_piece


def _alphabet() -> dict[str, int]:
    """Returns GPT-2's alphabet: each byte is a printable character, with unprintable bytes moved above 255."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(moved)}


_BYTES = _alphabet()


def _from_alphabet(name: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in name)
    except KeyError:
        return name.encode()


def _from_sentence_piece(name: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace("▁", " ").encode()


class VocabularySpeaker:
    """The methods of a model that need only its vocabulary. The subclass sets `_vocabulary`."""

    _vocabulary: TokenVocabulary
    _grammars: GrammarCompiler | None = None

    def tokenize(self, text: str) -> list[int]:
        """Returns the token ids of `text`, with special tokens, and with BOS if the model adds it."""
        return self._vocabulary.tokenize(text)

    def constraint(self, grammar: str) -> Constraint:
        """Returns a grammar's state. The first call reads the whole vocabulary, which takes some tenths of a second."""
        if self._grammars is None:
            self._grammars = self._vocabulary.grammar_compiler()
        return self._grammars.compile(grammar)

    def piece(self, token: int, special: bool) -> bytes:
        """Returns the bytes of a token: empty for ends, and for control tokens unless `special`."""
        return self._vocabulary.piece(token, special)

    def name(self, token: int) -> bytes:
        """Returns the bytes of a token; ends and control tokens by name."""
        return self._vocabulary.text_of(token)

    def is_end(self, token: int) -> bool:
        """Returns True if the token ends the turn, by the model's metadata or by the token's name."""
        return token in self._vocabulary.ends
