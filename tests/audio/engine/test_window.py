"""The mapping from a window's time to the file's time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from services.audio.engine.window import Piece, Window
from tests.case import case

# Speech at 10-14 s, 60-62 s and 600-601 s of the file, with 0.3 s of silence around each.
PIECES = (Piece(0, 155_200, 73_600), Piece(73_600, 955_200, 41_600), Piece(115_200, 9_595_200, 25_600))
WINDOW = Window(samples=np.zeros(140_800, dtype=np.float32), pieces=PIECES, margin=4800)
BORDERS = (0.0, 4.6, 7.2)


def test_its_own_measures() -> None:
    assert (WINDOW.seconds, WINDOW.frames, WINDOW.seek) == (8.8, 880, 970)
    assert (WINDOW.start, WINDOW.end) == (9.7, 601.3)


def test_borders_are_exact() -> None:
    for border, piece in zip(BORDERS, PIECES, strict=True):
        assert WINDOW.at(border) == piece.file / 16000
    for border, piece in zip((4.6, 7.2, 8.8), PIECES, strict=True):
        assert WINDOW.at(border, end=True) == (piece.file + piece.length) / 16000


@pytest.mark.parametrize(("time", "place"), [(-1, 9.7), (0.5, 10.2), (5.6, 60.7), (8.8, 601.3), (30, 601.3)])
def test_times_lie_in_their_pieces_and_in_the_window(time: float, place: float) -> None:
    assert WINDOW.at(time) == pytest.approx(place)


def test_spans_do_not_cover_removed_silence() -> None:
    for span, place in [
        ((0.3, 4.3), (10.0, 14.0)),
        ((0.3, 6.9), (10.0, 62.0)),
        ((4.4, 6.9), (59.7, 62.0)),  # begins in the silence after the first
        ((0.3, 4.8), (10.0, 14.3)),  # ends in the silence before the second
        ((4.4, 7.4), (59.7, 62.3)),  # both
        ((4.3, 4.8), (14.0, 14.3)),  # most of the word is before the border
        ((4.5, 4.9), (59.7, 60.0)),  # the word is after it
        ((3.9, 8.2), (13.6, 600.7)),  # a pause is inside it
        ((6.9, 4.0), (62.0, 62.0)),  # never backwards
        ((8.6, 40.0), (601.1, 601.3)),
    ]:
        with case(span=span, place=place):
            assert WINDOW.span(*span) == pytest.approx(place)


@pytest.mark.parametrize(
    ("word", "place"),
    [((4.0, 5.0), (13.7, 14.3)), ((4.1, 5.3), (59.7, 60.4)), ((0.3, 0.9), (10.0, 10.6)), ((8.0, 9.0), (600.5, 601.3))],
)
def test_a_word_is_in_one_piece(word: tuple[float, float], place: tuple[float, float]) -> None:
    assert WINDOW.word(*word) == pytest.approx(place)


def test_spans_one_after_the_other_stay_so() -> None:
    rng = np.random.default_rng(4)
    for _ in range(300):
        times = np.sort(rng.random(12) * 8.8).tolist()
        for find in (WINDOW.span, WINDOW.word):
            places = [place for pair in pairwise(times) for place in find(*pair)]
            assert places[::2] == sorted(places[::2])
            assert places[1::2] == sorted(places[1::2])
            assert all(start <= end for start, end in zip(places[::2], places[1::2], strict=True))
            assert all(end <= start for end, start in zip(places[1::2], places[2::2], strict=False))
