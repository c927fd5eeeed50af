"""Whether all machines of a group are in its Ray: `python -m services.text.engine.ray_gathering WHAT HEAD COUNT`.

`gather` ends once they are there, `watch` once one of them is gone. Processes of their own: Ray is no library for a
service. vLLM itself would wait for machines, too, but within the time that a model may take to load, and for those that
are gone nobody would look: Kubernetes notices a dead node minutes later.
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
    """Returns once `count` machines are there, however long that takes."""
    told = 0
    while (there := machines(ray)) < count:
        if there != told:
            told = there
            print(f"{there} of {count} machines are there", file=sys.stderr, flush=True)
        time.sleep(PAUSE_SECONDS)


def watch(ray: Any, count: int) -> None:
    """Returns once fewer than `count` machines are there: Ray takes some half a minute to believe that one is gone."""
    while machines(ray) >= count:
        time.sleep(WATCH_SECONDS)


def machines(ray: Any) -> int:
    """How many machines of the cluster are alive."""
    return sum(node["Alive"] for node in ray.nodes())


def connect(address: str) -> Any:
    """Ray's package, connected to the head at `ip:port`. Raises ConnectionError: nobody answers there."""
    # Only where a model is computed on several machines.
    import ray  # type: ignore[import-not-found]  # noqa: PLC0415

    for tries in range(1, CONNECT_TRIES + 1):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            break
        except (ConnectionError, RuntimeError):  # the head is only starting
            if tries == CONNECT_TRIES:
                raise
            time.sleep(PAUSE_SECONDS)
    return ray


if __name__ == "__main__":
    {"gather": gather, "watch": watch}[sys.argv[1]](connect(sys.argv[2]), int(sys.argv[3]))
