"""The limits of parallel work: windows that are computed together, and parallel calls of a CTranslate2 model."""

from __future__ import annotations

from services.audio.engine.messages import EngineOptions

CPU_WINDOWS = 8  # more gain nothing on a few cores and delay the next request
GPU_WINDOWS = 24
SMALL_BYTES = 160_000_000  # of weights: tiny and base, in 16 bits


def batch_windows(options: EngineOptions) -> int:
    """Returns the operator's limit, or the default of the device."""
    return options.batch_windows or (GPU_WINDOWS if options.gpu else CPU_WINDOWS)


def lane_count(weight_bytes: int, threads: int, *, gpu: bool) -> int:
    """Returns the number of lanes that share the threads: 2 for two threads, 4 for eight and more.

    The operations of a small model are so short that its threads wait for each other a quarter of the time; parallel
    calls do not wait, and they share the weights. A large model keeps all threads busy with one call, which answers a
    single caller sooner.
    """
    if gpu or weight_bytes > SMALL_BYTES:
        return 1
    return max(count for count in (1, 2, 4) if count * count <= 2 * max(1, threads))
