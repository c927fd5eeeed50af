"""Figures of replicas, hosts and devices."""

from __future__ import annotations

from typing import Any

from services.telemetry.figures import DeviceFigures, Figures, HostFigures, Latencies

GIB = 1024**3
BOUNDS = (0.1, 1.0)


def figures(uptime: float, began: int = 1, **more: Any) -> Figures:
    """Returns the figures of a process after `uptime` seconds: counters by name; `request`: counts of its buckets."""
    counters = {name: float(more.pop(name)) for name in ("generated_tokens", "prompt_tokens", "images") if name in more}
    times = {name: Latencies(BOUNDS, more.pop(name)) for name in ("first_output", "request") if name in more}
    return Figures(began=began, uptime=uptime, counters=counters, times=times, **more)


def host(id: str = "h", **more: Any) -> HostFigures:
    """Returns a host memory of 10 GiB, half of it in use."""
    return HostFigures(**({"id": id, "name": id, "total": 10 * GIB, "used": 5 * GIB, "threshold": 0.9} | more))


def device(id: str = "gpu", **more: Any) -> DeviceFigures:
    """Returns a GPU."""
    return DeviceFigures(**({"id": id, "name": "cuda:0", "total": 8 * GIB, "used": GIB} | more))
