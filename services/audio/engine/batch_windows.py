"""How many windows of sound are computed together at the most."""

from __future__ import annotations

from services.audio.engine.messages import EngineOptions

CPU_WINDOWS = 8  # more win nothing on a few cores and delay whoever comes next
GPU_WINDOWS = 24


def batch_windows(options: EngineOptions) -> int:
    """As the operator chose, or by the device."""
    return options.batch_windows or (GPU_WINDOWS if options.gpu else CPU_WINDOWS)
