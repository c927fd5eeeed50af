"""Each process's own device names and the shared pool names."""

from __future__ import annotations

from services.residency.memory.host_memory import read_host_memory
from services.residency.memory.memory_estimate import HOST
from services.residency.memory.pools import Pools


def test_places_become_pools_and_pools_places() -> None:
    pools = Pools({HOST: "cgroup 1:2", "cuda:0": "GPU-a"})
    assert pools.shared({HOST: 1, "cuda:0": 2, "cuda:7": 3}) == {"cgroup 1:2": 1, "GPU-a": 2, "cuda:7": 3}
    assert pools.own({"cgroup 1:2": 1, "GPU-a": 2, "GPU-b": 3}) == {HOST: 1, "cuda:0": 2, "GPU-b": 3}


def test_those_of_this_process_are_looked_up() -> None:
    assert Pools.read().shared({HOST: 1}) == {read_host_memory().pool: 1}
