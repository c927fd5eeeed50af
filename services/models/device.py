"""Detects the device that models run on, without loading native libraries into the service."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def detect_device() -> str:
    """Returns `cuda` if the NVIDIA driver is loaded, `mps` on Apple silicon, else `cpu`."""
    if NVIDIA_DRIVER.exists():
        return "cuda"
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "mps"
    return "cpu"


def resolve_device(setting: str) -> str:
    """Resolves a value of ALLM_DEVICE to a device."""
    return detect_device() if setting == "auto" else setting
