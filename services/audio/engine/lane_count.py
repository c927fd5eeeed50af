"""The number of parallel calls of a CTranslate2 model."""

from __future__ import annotations

SMALL_BYTES = 160_000_000  # of weights: tiny and base, in 16 bits


def lane_count(weight_bytes: int, threads: int, *, gpu: bool) -> int:
    """Returns the number of lanes that share the threads: 2 for two threads, 4 for eight and more.

    The operations of a small model are so short that its threads wait for each other a quarter of the time; parallel
    calls do not wait, and they share the weights. A large model keeps all threads busy with one call, which answers a
    single caller sooner.
    """
    if gpu or weight_bytes > SMALL_BYTES:
        return 1
    return max(count for count in (1, 2, 4) if count * count <= 2 * max(1, threads))
