"""The text of a memory estimate in a refusal."""

from __future__ import annotations

from services.residency.memory.memory_estimate import HOST, MemoryEstimate

MIB = 1024 * 1024


def test_an_estimate_lists_devices_and_parts() -> None:
    estimate = MemoryEstimate({"cuda:0": 1200 * MIB, HOST: 200 * MIB}, {"weights": 1000 * MIB, "cache": 400 * MIB})
    assert str(estimate) == "1.2 GiB on cuda:0 and 200 MiB on the host (weights 1.0 GiB, cache 400 MiB)"
    assert estimate.total == 1400 * MIB


def test_an_estimate_without_parts_or_devices() -> None:
    assert str(MemoryEstimate({HOST: 3 * MIB})) == "3.0 MiB on the host"
    assert str(MemoryEstimate({})) == "nothing"
    assert MemoryEstimate({}).total == 0
