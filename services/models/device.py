"""Where models run on this machine, found out without loading any native library into the service."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def detect_device() -> str:
    """`cuda` where the NVIDIA driver runs, `mps` on Apple silicon, else `cpu`."""
    if NVIDIA_DRIVER.exists():
        return "cuda"
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "mps"
    return "cpu"


def resolve_device(setting: str) -> str:
    """The device for a setting of ALLM_DEVICE."""
    return detect_device() if setting == "auto" else setting
