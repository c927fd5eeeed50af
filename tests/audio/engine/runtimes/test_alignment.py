"""Time warping and the median filter, compared with the reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.case import case
from tests.late import late

alignment = late("services.audio.engine.runtimes.whisper")
torch = late("torch")
whisper_timing = late("whisper.timing")


def cheapest(costs: np.ndarray) -> float:
    """Returns the cost of the cheapest path, computed by trying every way to reach each cell."""
    total = np.full((costs.shape[0] + 1, costs.shape[1] + 1), np.inf)
    total[0, 0] = 0
    for row, column in itertools.product(*map(range, costs.shape)):
        before = min(total[row, column], total[row, column + 1], total[row + 1, column])
        total[row + 1, column + 1] = costs[row, column] + before
    return float(total[-1, -1])


def test_the_way_is_the_cheapest_and_goes_from_corner_to_corner() -> None:
    for shape in [(1, 1), (1, 9), (9, 1), (4, 4), (3, 40), (12, 7)]:
        with case(shape=shape):
            costs = np.random.default_rng(3).normal(size=shape)
            rows, columns = alignment.warp(costs)
            assert (rows[0], columns[0]) == (0, 0)
            assert (rows[-1], columns[-1]) == (shape[0] - 1, shape[1] - 1)
            steps = {(int(down), int(right)) for down, right in zip(np.diff(rows), np.diff(columns), strict=True)}
            assert steps <= {(0, 1), (1, 0), (1, 1)}
            assert costs[rows, columns].sum() == pytest.approx(cheapest(costs), abs=1e-4)


def test_reference_advances_in_time_first_on_ties() -> None:
    rows, columns = alignment.warp(np.zeros((2, 3)))
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 1), (1, 2)]


def test_costs_are_those_of_the_reference() -> None:
    scores = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(5))
    weights = scores.softmax(dim=-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    wanted = -whisper_timing.median_filter((weights - mean) / deviation, 7).mean(dim=0)
    assert np.allclose(alignment.attention_costs(scores), wanted.numpy(), atol=1e-6)
    assert alignment.attention_costs(scores[:, :, :2]).shape == (5, 2), "too short for a filter"
