"""How many pictures are computed together at the most, and how much of the memory they may take."""

from __future__ import annotations

# Pixels that keep a few CPU cores busy: larger batches than these are no faster there, and whoever comes later waits.
CPU_PIXELS = 512 * 512
MOST_IMAGES = 16
SPARE = 0.8  # of the free memory, what is used


def batch_images(wanted: int, fitting: int) -> int:
    """As the operator chose (`wanted`; 0: nothing), or as many as fit; at least one."""
    return wanted or max(1, min(MOST_IMAGES, fitting))
