"""Computes the size that an uploaded picture is scaled to; handles no pixels."""

from __future__ import annotations

import math

from services.image.pictures.coding.messages import Fit


def fitted(width: int, height: int, fit: Fit) -> tuple[int, int]:
    """Returns the size for a `width` x `height` picture: its shape, with as many pixels as `fit`, within its limits."""
    if fit.exact:
        return fit.width, fit.height
    scale = math.sqrt(fit.width * fit.height / (width * height))
    sides = [_side(width * scale, fit), _side(height * scale, fit)]
    while sides[0] * sides[1] > fit.max_pixels:
        longer = 0 if sides[0] >= sides[1] else 1
        shorter = sides[longer] - fit.multiple_of
        if shorter < fit.min_side:
            break  # no size within these limits is small enough: the caller reports that
        sides[longer] = shorter
    return sides[0], sides[1]


def _side(length: float, fit: Fit) -> int:
    step = fit.multiple_of
    lowest = -(-fit.min_side // step) * step
    highest = fit.max_side // step * step
    return min(max(round(length / step) * step, lowest), highest)
