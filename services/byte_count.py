"""Byte counts in human-readable units."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def bytes_word(count: float) -> str:
    """Formats `144810464` as `138 MiB`: at most three digits before a point, and one after it below ten."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in _UNITS:
        count /= 1024
        if count < 999.5 or unit == _UNITS[-1]:
            break
    return f"{count:.1f} {unit}" if count < 9.95 else f"{count:,.0f} {unit}"
