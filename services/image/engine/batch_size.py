"""The batch size limit: pictures that are computed together, and the share of memory they may use."""

from __future__ import annotations

# Pixels that keep a few CPU cores busy: on a CPU a larger batch is no faster, and later requests wait for it.
CPU_PIXELS = 512 * 512
MOST_IMAGES = 16
SPARE = 0.8  # share of the free memory that may be used


def batch_images(wanted: int, fitting: int) -> int:
    """Returns the operator's choice (`wanted`; 0: none), else as many as fit, but at least one."""
    return wanted or max(1, min(MOST_IMAGES, fitting))
