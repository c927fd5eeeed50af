"""Aligns text with sound from the decoder's attention: dynamic time warping, in numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

MEDIAN = 7  # columns of the median filter


def attention_costs(scores: Tensor) -> npt.NDArray[np.float64]:
    """Returns the cost of each token at each time, [tokens, times], from attention `scores` [heads, tokens, times]."""
    weights = scores.softmax(dim=-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    return (
        (-_median((weights - mean) / deviation).mean(dim=0)).cpu().double().numpy()
    )  # on the CPU: Metal has no 64 bits


def warp(costs: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the rows and the columns of the cheapest path through `costs` [rows, columns], from the first corner to
    the last, by steps to the next row, the next column or both."""
    steps = _steps(costs)
    row, column = costs.shape
    path = []
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        step = 2 if row == 0 else 1 if column == 0 else int(steps[row + column, row])
        row -= step != 2
        column -= step != 1
    rows, columns = np.array(path[::-1], dtype=np.int64).T
    return rows, columns


def _steps(costs: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    """Returns the cheapest step into each cell: 0 is diagonal, 1 from the row before, 2 from the column before.

    Indexed by [row + column, row], counted from 1. All cells of one diagonal are computed together: they depend only on
    the two diagonals before.
    """
    rows, columns = costs.shape
    steps = np.zeros((rows + columns + 1, rows + 1), dtype=np.int8)
    older = np.full(rows + 1, np.inf, dtype=np.float32)  # totals of a diagonal, by row
    old = older.copy()
    older[0] = 0
    for diagonal in range(2, rows + columns + 1):
        first, last = max(1, diagonal - columns), min(rows, diagonal - 1)
        here = np.arange(first, last + 1)
        both, above, left = older[here - 1], old[here - 1], old[here]
        step = np.where((both < above) & (both < left), 0, np.where((above < both) & (above < left), 1, 2))
        best = np.choose(step, (both, above, left))
        new = np.full(rows + 1, np.inf, dtype=np.float32)
        new[here] = costs[here - 1, diagonal - here - 1] + best
        steps[diagonal, here] = step
        older, old = old, new
    return steps


def _median(x: Tensor) -> Tensor:
    """Returns the running median over the last dimension, mirrored at the ends."""
    half = MEDIAN // 2
    if x.shape[-1] <= half:
        return x
    return pad(x, (half, half), mode="reflect").unfold(-1, MEDIAN, 1).sort(dim=-1).values[..., half]
