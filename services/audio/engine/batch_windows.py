"""The limit of windows that are computed together."""

from __future__ import annotations

from services.audio.engine.messages import EngineOptions

CPU_WINDOWS = 8  # more gain nothing on a few cores and delay the next request
GPU_WINDOWS = 24


def batch_windows(options: EngineOptions) -> int:
    """Returns the operator's limit, or the default of the device."""
    return options.batch_windows or (GPU_WINDOWS if options.gpu else CPU_WINDOWS)
