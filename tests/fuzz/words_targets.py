"""A model folder's files that workers read when they load it: tokenizers, vocabularies, the recipe of embeddings."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from services.audio.engine.vocabulary import converted_vocabulary, tokenizer_vocabulary
from services.text.engine.runtimes.torch.recipe import read_recipe
from services.text.engine.runtimes.torch.vocabulary import TokenVocabulary, chat_template
from tests.fuzz.fuzz_target import FuzzTarget
from tests.fuzz.model_targets import JSON_WORDS, replaced, text_model

WHISPER_SIZE = 256 + 2 + 99 + 6 + 1501
WORDS = (
    *JSON_WORDS,
    *(b'"vocab"', b'"merges"', b'"added_tokens"', b'"content"', b'"id"', b'"special"', b'"<|endoftext|>"', b'"model"'),
    *(
        b'"chat_template"',
        b'"added_tokens_decoder"',
        b'"bos_token"',
        b'"eos_token"',
        b'"BPE"',
        b'"WordPiece"',
        b'"Unigram"',
    ),
    *(
        b'"pre_tokenizer"',
        b'"decoder"',
        b'"ByteLevel"',
        b'"Sequence"',
        b'"Split"',
        b'"Regex"',
        b'"normalizer"',
        b'"Replace"',
    ),
)


def _folder(files: Mapping[str, bytes]) -> Path:
    """Writes these files, and nothing else, to a folder that the process reuses."""
    folder = _kept_folder()
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


@cache
def _kept_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="allm-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _known(files: Mapping[str, bytes], case: bytes) -> Path:
    """Writes the folder of the case, which may replace known files only."""
    changed = replaced(files, case)
    return _folder({name: changed[name] for name in files})


def _tokenizer(case: bytes) -> None:
    folder = _known(_TEXT, case)
    assert isinstance(chat_template(folder), str)
    vocabulary = TokenVocabulary(folder, 300, frozenset({1, 10**12}))
    assert all(0 <= token < 300 for token in vocabulary.ends)
    assert all(isinstance(vocabulary.text_of(token), bytes) for token in range(300))
    assert all(0 <= token < 300 for token in vocabulary.tokenize("hello <|im_end|> \u00e9\U0001f642"))


def _whisper(case: bytes) -> None:
    vocabulary = tokenizer_vocabulary(_known({"tokenizer.json": _whisper_tokenizer()}, case), WHISPER_SIZE)
    assert vocabulary.decode(vocabulary.encode("hello there")) == "hello there"


def _converted(case: bytes) -> None:
    vocabulary = converted_vocabulary(_folder({"vocabulary.json": case}))
    assert vocabulary.decode(vocabulary.encode("hello there")) == "hello there"


def _converted_text(case: bytes) -> None:
    vocabulary = converted_vocabulary(_folder({"vocabulary.txt": case}))
    assert vocabulary.decode(vocabulary.encode("hello there")) == "hello there"


def _recipe(case: bytes) -> None:
    folder = _known(text_model(), case)
    for decoder in (False, True):
        recipe = read_recipe(folder, decoder=decoder)
        assert recipe.max_tokens >= 0
        assert all(folder in layer.weights.parents for layer in recipe.layers), "weights lie in the model's folder"


def _letters() -> list[str]:
    """Returns GPT-2's names of the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    return [names[byte] for byte in range(256)]


def _whisper_tokenizer() -> bytes:
    vocabulary = {name: token for token, name in enumerate(_letters())}
    added = [{"id": 256, "content": "<|endoftext|>"}, {"id": 257, "content": "<|startoftranscript|>"}]
    return json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}).encode()


def whisper_names() -> bytes:
    """Returns a complete list for a small converted vocabulary: 99 languages, all markup tokens."""
    return json.dumps([*_letters(), "<|endoftext|>", *(f"<|{at}|>" for at in range(1 + 99 + 6 + 1501))]).encode()


_TEXT: Mapping[str, bytes] = {
    "tokenizer.json": json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {"id": 256, "content": "<|im_end|>", "special": True, "single_word": False, "lstrip": False}
                | {"rstrip": False, "normalized": False}
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {name: at for at, name in enumerate(_letters())}, "merges": []},
        }
    ).encode(),
    "tokenizer_config.json": json.dumps(
        {
            "bos_token": "<|im_end|>",
            "eos_token": {"content": "<|im_end|>"},
            "chat_template": [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}],
            "added_tokens_decoder": {"256": {"content": "<|im_end|>", "special": True}, "257": {"content": "<|x|>"}},
        }
    ).encode(),
    "chat_template.json": b'{"chat_template": "z"}',
    "chat_template.jinja": b"{{ messages }}",
}

WORDS_TARGETS = (
    FuzzTarget("tokenizer-folder", _tokenizer, words=WORDS, cases=400),
    FuzzTarget("whisper-tokenizer", _whisper, words=WORDS, cases=400),
    FuzzTarget("converted-vocabulary", _converted, words=WORDS, longest=64 * 1024, cases=100),
    FuzzTarget("converted-vocabulary-text", _converted_text, words=(b"<|endoftext|>\n",), longest=64 * 1024, cases=100),
    FuzzTarget("recipe", _recipe, words=WORDS, cases=400),
)
