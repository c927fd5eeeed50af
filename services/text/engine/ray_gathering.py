"""Membership check of a Ray cluster: `python -m services.text.engine.ray_gathering gather|watch HEAD COUNT`.

`gather` ends once all machines have joined, `watch` once one of them has left. Both run as separate processes: Ray is
not a library for a service. vLLM also waits for machines, but its wait counts against the model's load time limit, and
it does not watch for machines that leave. Kubernetes notices a dead node only minutes later.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

CONNECT_TRIES = 60
PAUSE_SECONDS = 1.0
WATCH_SECONDS = 5.0


def gather(ray: Any, count: int) -> None:
    """Waits until the cluster has `count` machines, without a time limit."""
    reported = 0
    while (joined := machines(ray)) < count:
        if joined != reported:
            reported = joined
            print(f"{joined} of {count} machines have joined", file=sys.stderr, flush=True)
        time.sleep(PAUSE_SECONDS)


def watch(ray: Any, count: int) -> None:
    """Waits until the cluster has fewer than `count` machines. Ray needs about 30 seconds to report a lost machine."""
    while machines(ray) >= count:
        time.sleep(WATCH_SECONDS)


def machines(ray: Any) -> int:
    """Counts the live machines of the cluster."""
    return sum(node["Alive"] for node in ray.nodes())


def connect(address: str) -> Any:
    """Connects to the head at `ip:port` and returns Ray's package. Raises ConnectionError if nothing answers."""
    # Ray is installed only where a model runs on several machines.
    import ray  # type: ignore[import-not-found]  # noqa: PLC0415

    for tries in range(1, CONNECT_TRIES + 1):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            break
        except (ConnectionError, RuntimeError):  # the head is still starting
            if tries == CONNECT_TRIES:
                raise
            time.sleep(PAUSE_SECONDS)
    return ray


if __name__ == "__main__":
    {"gather": gather, "watch": watch}[sys.argv[1]](connect(sys.argv[2]), int(sys.argv[3]))
