"""Free loopback ports for tests."""

from __future__ import annotations

import itertools
import os
import random

from services.cli.problem import Problem
from services.cli.serve.ports import choose_port

# Not the ports that `allm serve` chooses, and different ones per worker of a run: a test may use a port much later.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_COUNT = 1000
_FIRST = 10_000 + _COUNT * (_WORKER % 5)
_ports = itertools.cycle(random.sample(range(_FIRST, _FIRST + _COUNT), _COUNT))


def free_port() -> int:
    """Returns a loopback TCP port that nothing listens on and no outgoing connection will use."""
    for port in itertools.islice(_ports, _COUNT):
        try:
            return choose_port("127.0.0.1", port, "the tests' own")
        except Problem:
            continue
    raise AssertionError(f"no port from {_FIRST} on is free")
