"""The padding of windows."""

from __future__ import annotations

from services.audio.engine.running_transcript import columns_for
from tests.case import case


def test_columns() -> None:
    for frames, shortest, others, columns in [
        (1, 1, (), 1500),
        (1100, 1, (), 1500),
        (1101, 1, (), 2000),
        (1600, 1, (), 2000),
        (1601, 1, (), 2500),
        (2101, 1, (), 3000),
        (3000, 1, (), 3000),
        (100, 3000, (), 3000),
        (100, 1600, (), 2000),
        (100, 1, {2000}, 2000),  # one length longer, to share a decoding batch
        (100, 1, {1500, 2000}, 1500),
        (100, 1, {3000}, 1500),
        (1200, 1, {2500}, 2000),  # the extra encoding would cost too much
    ]:
        with case(frames=frames, shortest=shortest, others=others, columns=columns):
            assert columns_for(frames, shortest, others) == columns
