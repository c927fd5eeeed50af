"""The criteria for a good answer under overload, and the report on them."""

from __future__ import annotations

import dataclasses

import pytest

from bench.overload import _outcome, report

FOUND = [
    (1.0, None),
    (2.0, None),
    (0.1, "HTTP 429: m is busy"),
    (9.0, "HTTP 504: the request took longer"),
    (9.0, "late: complete, but too late"),
    (9.0, "error in the stream: the request took longer than the 9 seconds of x-request-timeout"),
    (0.5, "HTTP 500: internal error"),
]


def test_every_end_is_counted_as_what_it_is() -> None:
    outcome = _outcome(4.0, 2.0, 60.0, 0.5, FOUND)
    assert (outcome.sent, outcome.good, outcome.refused, outcome.late) == (7, 2, 1, 3)
    assert outcome.failed == {"HTTP 500: internal error": 1}
    assert outcome.answer_s == [1.0, 2.0]
    assert outcome.refusal_s == [0.1]


@pytest.mark.parametrize(("goodput", "verdict"), [(0.9, "holds"), (0.89, "does not hold")])
def test_the_highest_load_is_held_against_the_best(goodput: float, verdict: str) -> None:
    best = _outcome(1.0, 1.0, 60.0, 1.0, FOUND)
    text = report([best, dataclasses.replace(best, share=4.0, goodput=goodput)], 1.0, 16.0, "quiet")
    assert f"at 4x, {verdict}." in text
    assert f"| {goodput:.0%} |" in text
    assert "* 1x: 1 x HTTP 500: internal error" in text
