"""Language codes and names as Whisper accepts them."""

from __future__ import annotations

import pytest

from services.audio.engine.languages import LANGUAGES
from services.audio.language import language_code
from services.errors import InvalidRequest
from tests.late import late

whisper_tokenizer = late("whisper.tokenizer")


def test_every_code_and_every_name_of_the_reference_is_taken() -> None:
    assert {code: language_code(code) for code in LANGUAGES} == {code: code for code in LANGUAGES}
    assert {
        name: language_code(name) for name in whisper_tokenizer.TO_LANGUAGE_CODE
    } == whisper_tokenizer.TO_LANGUAGE_CODE


@pytest.mark.parametrize(
    ("given", "code"), [("", ""), ("  ", ""), ("EN", "en"), (" English ", "en"), ("Mandarin", "zh")]
)
def test_case_and_space_do_not_matter(given: str, code: str) -> None:
    assert language_code(given) == code


@pytest.mark.parametrize("given", ["xx", "en-US", "klingon", "x" * 1000])
def test_another_is_refused_by_name(given: str) -> None:
    with pytest.raises(InvalidRequest, match=given[:40]) as caught:
        language_code(given)
    assert caught.value.param == "language"
    assert len(caught.value.message) < 200
