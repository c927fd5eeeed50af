"""The split of a window's tokens into phrases, case by case as in the reference."""

from __future__ import annotations

import numpy as np
import pytest

from services.audio.engine.outcome import Cut, Phrase, cut

BEGIN = 100


def at(seconds: float) -> int:
    return BEGIN + round(seconds * 50)


def approximate(found: Cut) -> list[tuple[float, float, list[int]]]:
    return [(round(one.start, 2), round(one.end, 2), one.tokens) for one in found.phrases]


def test_a_single_time_at_the_end_ends_the_window() -> None:
    tokens = [at(0), 1, 2, at(3.5), at(3.5), 3, at(8)]
    found = cut(tokens, BEGIN, 1200)
    assert approximate(found) == [(0.0, 3.5, tokens[:4]), (3.5, 8.0, tokens[4:])]
    assert (found.advance, found.whole) == (1200, True)


def test_text_after_the_last_pair_is_left_to_the_next_window() -> None:
    tokens = [at(0), 1, at(2), at(2.5), 2, at(5), at(6), 3, 4]
    found = cut(tokens, BEGIN, 3000)
    assert approximate(found) == [(0.0, 2.0, tokens[:3]), (2.5, 5.0, tokens[3:6])]
    assert (found.advance, found.whole) == (500, False)


def test_two_times_at_the_end_are_a_pair_too() -> None:
    tokens = [at(0), 1, at(2), at(2)]
    found = cut(tokens, BEGIN, 3000)
    assert approximate(found) == [(0.0, 2.0, tokens[:3])]
    assert (found.advance, found.whole) == (200, False)


def test_one_phrase_ends_with_its_last_time() -> None:
    tokens = [at(0), 1, 2, at(4.2)]
    found = cut(tokens, BEGIN, 1000)
    assert approximate(found) == [(0.0, 4.2, tokens)]
    assert (found.advance, found.whole) == (1000, True)


@pytest.mark.parametrize("tokens", [[1, 2], [BEGIN, 1, 2]])
def test_one_phrase_without_an_end_lasts_as_long_as_the_window(tokens: list[int]) -> None:
    found = cut(tokens, BEGIN, 1234)
    assert approximate(found) == [(0.0, 12.34, tokens)]
    assert found.advance == 1234


def test_no_tokens_are_a_phrase_without_text() -> None:
    assert cut([], BEGIN, 300) == Cut([Phrase(0.0, 3.0, [])], 300, whole=False)


def test_a_window_always_moves_on_and_never_beyond_its_sound() -> None:
    for last in (0.0, 29.0):
        assert cut([at(0), 1, at(last), at(last)], BEGIN, 500).advance == 500


def test_no_token_before_the_last_border_is_lost() -> None:
    generator = np.random.default_rng(5)
    for _ in range(500):
        tokens = [int(one) for one in generator.choice([1, 2, 3, at(1), at(2), at(9)], generator.integers(0, 12))]
        found = cut(tokens, BEGIN, 1000)
        together = [token for phrase in found.phrases for token in phrase.tokens]
        assert together == tokens[: len(together)]
        assert 0 < found.advance <= 1000


def test_text_after_the_last_pair_is_kept_in_the_last_window() -> None:
    tokens = [at(0), 1, at(2), at(2.5), 2, 3]
    found = cut(tokens, BEGIN, 400, keep_rest=True)
    assert approximate(found) == [(0.0, 2.0, tokens[:3]), (2.5, 4.0, tokens[3:])]
    assert found.advance == 400


def test_a_rest_without_text_is_none() -> None:
    tokens = [at(0), 1, at(2), at(2)]
    assert cut(tokens, BEGIN, 400, keep_rest=True) == cut(tokens, BEGIN, 400)
