"""Figures of replicas, hosts and devices."""

from __future__ import annotations

from typing import Any

from services.telemetry.figures import COUNTERS, DeviceFigures, Figures, HostFigures, Latency, ModelFigures, Times

GIB = 1024**3


def figures(uptime: float, began: int = 1, **more: Any) -> Figures:
    """Returns the figures of a process after `uptime` seconds: counters by name."""
    return Figures(began=began, uptime=uptime, **counted(more))


def of_model(**more: Any) -> ModelFigures:
    """Returns a model's figures: counters by name."""
    return ModelFigures(**counted(more))


def counted(more: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments, the counters among them in one mapping."""
    return {"counters": {name: float(more.pop(name)) for name in COUNTERS if name in more}} | more


def latencies(
    *seconds: float, kind: Times = "request", model: str = "m", age: float = 0.0, start: int = 1
) -> tuple[tuple[int, Latency], ...]:
    """Returns measured times, numbered from `start`."""
    return tuple(
        (number, Latency(kind=kind, model=model, seconds=each, age=age)) for number, each in enumerate(seconds, start)
    )


def host(id: str = "h", **more: Any) -> HostFigures:
    """Returns a host memory of 10 GiB, half of it in use."""
    return HostFigures(**({"id": id, "name": id, "total": 10 * GIB, "used": 5 * GIB, "threshold": 0.9} | more))


def device(id: str = "gpu", **more: Any) -> DeviceFigures:
    """Returns a GPU."""
    return DeviceFigures(**({"id": id, "name": "cuda:0", "total": 8 * GIB, "used": GIB} | more))
