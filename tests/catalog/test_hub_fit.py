"""The outlook of models that are not downloaded yet."""

from __future__ import annotations

from dataclasses import replace

from services.catalog.hub_fit import HubFit, fit_of, memory_of
from services.catalog.replica_status import Replica
from services.models.descriptor import ModelFacts
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import RUNTIMES
from tests.catalog.reported_figures import GIB, device, host

FACTS = ModelFacts(
    id="org/m",
    modality="text",
    format="gguf",
    architecture="llama",
    capabilities=frozenset({"chat"}),
    size=2 * GIB,
    context_tokens=0,
)


def replica(on: str = "cpu", *, forced: bool = False) -> Replica:
    return Replica(
        name="text-1",
        modality="text",
        registry=EngineRegistry(on, forced=forced, runtimes=tuple(one for one in RUNTIMES if one.modality == "text")),
        statuses={},
        last_report=0.0,
    )


def test_a_processor_has_the_hosts_memory_up_to_the_threshold() -> None:
    here = replica()
    assert fit_of(FACTS, [(here, host())]).fit == "fits"  # of 9 GiB 4 are free
    assert fit_of(FACTS, [(here, host(used=8 * GIB))]).fit == "needs_room"
    small = fit_of(FACTS, [(here, host(name="laptop", total=2 * GIB, used=0))])
    assert small.fit == "too_large"
    assert small.reason == "it takes about 3.0 GiB, and laptop has 1.8 GiB for models"
    assert fit_of(FACTS, [(here, None)]).fit == "unknown"


def test_a_gpu_has_its_own_memory() -> None:
    gpu = replica("cuda")
    large = replace(FACTS, size=5 * GIB)
    assert fit_of(large, [(gpu, host(devices=(device(used=2 * GIB),)))]).fit == "needs_room"
    assert fit_of(large, [(gpu, host(devices=(device(used=0),)))]).fit == "fits"
    assert "cuda:0 has 8.0 GiB" in fit_of(replace(FACTS, size=9 * GIB), [(gpu, host(devices=(device(),)))]).reason
    assert fit_of(large, [(gpu, host(used=0))]).fit == "fits", "a GPU without memory of its own uses the host's"


def test_what_no_runtime_can_run_says_why() -> None:
    unknown = fit_of(replace(FACTS, architecture="clip"), [(replica(), host())])
    assert unknown == HubFit(fit="unsupported", reason="architecture 'clip' is not supported by llama_cpp")
    heavy = fit_of(replace(FACTS, size=20 * GIB), [(replica(), host(total=100 * GIB))])
    assert heavy.fit == "unsupported"
    assert heavy.reason.startswith("needs a GPU")
    assert fit_of(replace(FACTS, size=20 * GIB), [(replica(forced=True), host(total=100 * GIB))]).fit == "fits"
    assert fit_of(FACTS, []) == HubFit(fit="unsupported", reason="no text service is running")
    assert fit_of(replace(FACTS, architecture=""), [(replica(), host())]).fit == "fits", "the hub need not say it"


def test_the_best_replica_counts() -> None:
    assert fit_of(FACTS, [(replica(), host(total=GIB)), (replica(), host())]).fit == "fits"


def test_torch_keeps_two_copies_on_a_processor() -> None:
    folder = replace(FACTS, format="safetensors")
    runtimes = {one.name: one for one in replica().registry.runtimes}
    assert memory_of(folder, runtimes["torch"]) > 2 * folder.size
    assert memory_of(folder, replace(runtimes["torch"], device="cuda")) < 2 * folder.size
    assert FACTS.size < memory_of(FACTS, runtimes["llama_cpp"]) < 1.5 * FACTS.size
