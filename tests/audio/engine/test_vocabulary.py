"""Whisper's tokens, from every supported file format, compared with the reference's tokenizer."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import random
from pathlib import Path

import pytest

from services.audio.engine.languages import LANGUAGES
from services.audio.engine.vocabulary import (
    WhisperVocabulary,
    converted_vocabulary,
    package_vocabulary,
    tokenizer_vocabulary,
)
from services.worker.messages import EngineError
from tests.audio.engine.reference_tokenizer import reference_tokenizer
from tests.late import late
from tests.whisper_weights import base_ct2, tiny_en_ct2

whisper_tokenizer = late("whisper.tokenizer")

ASSETS = Path(importlib.util.find_spec("whisper").origin).parent / "assets"
ENGLISH, MULTILINGUAL, LARGE_V3 = 51864, 51865, 51866
TEXTS = [
    "",
    " Hello, world's end: I'm sure  they'll\n\n  come. ",
    "日本語のテキスト、そして中国語。",
    "हिन्दी में १२ ½² Ⅷ",
    "♪♪ (music) <|en|> <|endoftext|>",
    "\x1c \x1f\u00a0\u3000x\u2003",
    "don't DON'T 'tis 'S ''s",
]


@functools.cache
def every_vocabulary() -> list[WhisperVocabulary]:
    """Returns three English vocabularies, three multilingual ones, and large-v3's."""
    return [
        converted_vocabulary(tiny_en_ct2()),
        tokenizer_vocabulary(tiny_en_ct2(), ENGLISH),
        package_vocabulary(ASSETS, ENGLISH),
        converted_vocabulary(base_ct2()),
        tokenizer_vocabulary(base_ct2(), MULTILINGUAL),
        package_vocabulary(ASSETS, MULTILINGUAL),
        package_vocabulary(ASSETS, LARGE_V3),
    ]


@pytest.fixture(params=["english", "multilingual", "large-v3"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def vocabulary(kind: str) -> WhisperVocabulary:
    return every_vocabulary()[{"english": 0, "multilingual": 4, "large-v3": 6}[kind]]


@pytest.fixture
def languages(kind: str) -> int:
    return {"english": 0, "multilingual": 99, "large-v3": 100}[kind]


@pytest.fixture
def reference(languages: int) -> whisper_tokenizer.Tokenizer:
    return reference_tokenizer(languages)


def random_texts() -> list[str]:
    random_ = random.Random(7)  # noqa: S311
    letters = [chr(random_.randrange(0x20, 0x3000)) for _ in range(300)] + list("  'sdrv  \n\té字कि१²Ⅷ🙂")
    return ["".join(random_.choices(letters, k=random_.randrange(1, 40))) for _ in range(200)]


def unbroken_texts() -> list[str]:
    """Returns long texts without a space: a repeated letter, and 5,000 Chinese characters."""
    random_ = random.Random(7)  # noqa: S311
    return ["a" * 1500, "".join(chr(random_.randrange(0x4E00, 0x9FFF)) for _ in range(5000))]


def test_all_files_hold_the_same_tokens() -> None:
    english, *others = [[found.piece(token) for token in range(found.eot)] for found in every_vocabulary()]
    assert others[0] == others[1] == english
    assert others[2] == others[3] == others[4] == others[5]
    assert len(others[2]) == len(english) + 1


def test_markup_has_the_ids_of_the_reference(
    vocabulary: WhisperVocabulary, reference: whisper_tokenizer.Tokenizer
) -> None:
    names = [
        "sot",
        "eot",
        "sot_prev",
        "sot_lm",
        "no_speech",
        "no_timestamps",
        "timestamp_begin",
        "translate",
        "transcribe",
    ]
    assert {name: getattr(vocabulary, name) for name in names} == {name: getattr(reference, name) for name in names}
    assert vocabulary.start("en", "transcribe") == list(reference.sot_sequence)
    assert set(reference.non_speech_tokens) <= set(vocabulary.suppressed)
    assert vocabulary.name(vocabulary.timestamp_begin + 100) == "<|2.00|>"
    if vocabulary.multilingual:
        tokens = [vocabulary.language_token(code) for code in vocabulary.languages]
        assert tokens == sorted(reference.all_language_tokens)


def test_text_becomes_the_tokens_of_the_reference_and_back(
    vocabulary: WhisperVocabulary, reference: whisper_tokenizer.Tokenizer
) -> None:
    for text in [*TEXTS, *unbroken_texts(), *random_texts()]:
        tokens = vocabulary.encode(text)
        assert tokens == reference.encode(text, disallowed_special=()), repr(text)
        assert vocabulary.decode(tokens) == text
        assert b"".join(map(vocabulary.piece, tokens)).decode() == text


@pytest.mark.parametrize("language", ["en", "zh"])
def test_words_are_split_as_in_the_reference(vocabulary: WhisperVocabulary, languages: int, language: str) -> None:
    tokenizer = dataclasses.replace(reference_tokenizer(languages), language=language)
    for text in TEXTS[1:] + random_texts():
        tokens = [*vocabulary.encode(text), vocabulary.eot]
        words, groups = tokenizer.split_to_word_tokens(tokens)
        assert vocabulary.split_words(tokens, language) == (list(words), [list(group) for group in groups])


def test_part_of_a_character_never_shows() -> None:
    vocabulary = converted_vocabulary(tiny_en_ct2())
    tokens = vocabulary.encode(" so 𒀀")
    assert len(vocabulary.piece(tokens[-1])) < 4
    assert vocabulary.decode(tokens[:-1]) == " so "
    words, groups = vocabulary.split_words(tokens[:-1], "en")
    assert "".join(words).strip() == "so"
    assert [token for group in groups for token in group] == tokens[:-1]
    assert "\ufffd" not in "".join(words)


def test_special_tokens_are_no_text() -> None:
    vocabulary = converted_vocabulary(base_ct2())
    hello = vocabulary.encode(" hello")
    assert (
        vocabulary.decode([*vocabulary.start("de", "translate"), vocabulary.timestamp_begin, *hello, vocabulary.eot])
        == " hello"
    )
    assert vocabulary.piece(vocabulary.timestamp_begin) == b""


def test_languages_are_those_that_were_published() -> None:
    assert LANGUAGES == whisper_tokenizer.LANGUAGES
    assert list(LANGUAGES) == list(whisper_tokenizer.LANGUAGES), "the order is that of the tokens"
    assert converted_vocabulary(tiny_en_ct2()).languages == ["en"]
    assert len(converted_vocabulary(base_ct2()).languages) == 99
    assert package_vocabulary(ASSETS, LARGE_V3).languages[-1] == "yue"


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"vocabulary\.txt is missing"):
        converted_vocabulary(tmp_path)
    with pytest.raises(EngineError, match=r"tokenizer\.json is missing"):
        tokenizer_vocabulary(tmp_path, ENGLISH)
    (tmp_path / "vocabulary.json").write_text("{")
    with pytest.raises(EngineError, match=r"vocabulary\.json is not JSON"):
        converted_vocabulary(tmp_path)
    (tmp_path / "vocabulary.json").write_text(json.dumps(["a", "<|endoftext|>"]))
    with pytest.raises(EngineError, match=r"vocabulary\.json is not the vocabulary of a Whisper model") as caught:
        converted_vocabulary(tmp_path)
    assert caught.value.code == "MODEL_INVALID"
    (tmp_path / "vocabulary.json").write_text(json.dumps(["\u4e00", "<|endoftext|>"]))
    with pytest.raises(EngineError, match=r"is not a byte of a token"):
        converted_vocabulary(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineError, match=r"tokenizer\.json is not a tokenizer of a Whisper model"):
        tokenizer_vocabulary(tmp_path, ENGLISH)
    with pytest.raises(EngineError, match=r"is token \d+, expected \d+"):
        tokenizer_vocabulary(base_ct2(), LARGE_V3)
