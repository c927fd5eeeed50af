"""Detects the instructions of the machine's processor."""

from __future__ import annotations

from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last is Arm's


def has_bfloat16() -> bool:
    """Returns True if the processor has instructions that multiply bfloat16. Known on Linux only."""
    try:
        lines = _CPU_INFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return not _BFLOAT16.isdisjoint(flags.split())
