"""How many calls of a CTranslate2 model are computed at the same time."""

from __future__ import annotations

SMALL_BYTES = 160_000_000  # of weights: tiny and base, in 16 bits


def lane_count(weight_bytes: int, threads: int, *, gpu: bool) -> int:
    """Lanes that share out the threads: 2 of two threads, 4 of eight and more.

    The operations of a small model are so short that its threads wait for each other a quarter of the time; calls
    beside each other wait for nothing. They share the weights. A large model keeps all threads busy with one call, and
    a caller who is alone is answered sooner.
    """
    if gpu or weight_bytes > SMALL_BYTES:
        return 1
    return max(count for count in (1, 2, 4) if count * count <= 2 * max(1, threads))
