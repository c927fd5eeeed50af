"""The tokenizer: one token for every known word, and unknown words are spelt out without loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.case import case
from tests.late import late
from training.shapes_sd.caption import words

architecture = late("training.shapes_sd.architecture")
reading = late("training.shapes_sd.reading")
transformers = late("transformers")
vocabulary = late("training.shapes_sd.vocabulary")

STRANGE = [
    "A cute baby sea otter wearing a beret, digital art!",
    "antidisestablishmentarianism & co. -- 50% off (v2.0)",
    "It's the dog's; they'll we've I'm",
    "naïve café, Zürich, 猫が好き, Москва, \U0001f600\U0001f680",
    "tabs\tand\nnewlines\r\n and   spaces",
    "\x00\x01\x7f",
    "",
    " ",
    "<|startoftext|> a <|endoftext|> b",
    "RED CIRCLE ON A BLUE BACKGROUND",
]


@pytest.fixture(scope="module")
def words_to_tokens() -> transformers.CLIPTokenizer:
    return vocabulary.tokenizer()


def test_every_word_of_the_captions_is_one_token(words_to_tokens: transformers.CLIPTokenizer) -> None:
    for word in words():
        assert words_to_tokens.tokenize(word) == [f"{word}</w>"]
        assert words_to_tokens.tokenize(word.upper()) == [f"{word}</w>"]


def test_any_text_becomes_tokens_of_the_vocabulary(words_to_tokens: transformers.CLIPTokenizer) -> None:
    for text in STRANGE:
        with case(text=text):
            ids = words_to_tokens(text).input_ids
            assert ids[0] == words_to_tokens.bos_token_id
            assert ids[-1] == words_to_tokens.eos_token_id
            assert all(0 <= token < len(words_to_tokens) for token in ids)
            assert reading.tokens_of(words_to_tokens, [text]).shape == (1, architecture.MAX_TOKENS)


@pytest.mark.parametrize("text", STRANGE[:5])
def test_unknown_tokens_are_spelt_and_not_lost(words_to_tokens: transformers.CLIPTokenizer, text: str) -> None:
    ids = words_to_tokens(text, add_special_tokens=False).input_ids
    assert words_to_tokens.unk_token_id not in ids
    spelt = words_to_tokens.decode(ids).replace(" ", "")
    assert spelt == "".join(text.lower().split())


def test_a_text_of_ten_thousand_words_is_counted_in_full(words_to_tokens: transformers.CLIPTokenizer) -> None:
    assert len(words_to_tokens("red " * 10_000, verbose=False).input_ids) == 10_002


def test_it_is_the_same_after_it_was_written(words_to_tokens: transformers.CLIPTokenizer, tmp_path: Path) -> None:
    words_to_tokens.save_pretrained(tmp_path)
    read = transformers.CLIPTokenizer.from_pretrained(tmp_path)
    assert read.model_max_length == architecture.MAX_TOKENS
    for text in STRANGE:
        assert read(text, verbose=False).input_ids == words_to_tokens(text, verbose=False).input_ids
