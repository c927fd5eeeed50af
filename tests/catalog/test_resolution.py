"""The catalog's prediction of how a replica runs a model: the replica reaches the same result."""

from __future__ import annotations

from dataclasses import replace

from services.catalog.replica_status import Replica
from services.catalog.resolution import expected_state, explain
from services.models.desired import DesiredModel
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import RUNTIMES, RuntimeSpec
from services.provision.plan import make_plans
from services.settings.settings import load_settings
from tests.catalog.desired_model import ARTIFACT, MEASURED, desired, facts

(LLAMA_CPP,) = [runtime for runtime in RUNTIMES if runtime.name == "llama_cpp"]
TORCH = replace(LLAMA_CPP, name="torch", formats=frozenset({"safetensors"}))
SAFETENSORS = desired("m", facts=facts("m", format="safetensors"))
CACHED = replace(SAFETENSORS, artifacts=(ARTIFACT,))


def replica(*runtimes: RuntimeSpec, device: str = "cpu", forced: bool = False) -> Replica:
    registry = EngineRegistry(device, forced=forced, runtimes=runtimes)
    return Replica(name="text-1", modality="text", registry=registry, statuses={}, last_report=0)


def reported(found: Replica, wanted: DesiredModel) -> list[tuple[str, bool, bool]]:
    verdicts = explain(found, wanted)
    assert all(verdict.reason for verdict in verdicts)
    return [(verdict.runtime.name, verdict.chosen, verdict.able) for verdict in verdicts]


def test_model_with_an_able_runtime_is_pending() -> None:
    assert expected_state(replica(LLAMA_CPP), desired("m")) == ("pending", "text-1 has not started on it yet")


def test_model_without_an_able_runtime_is_unsupported_with_the_reason() -> None:
    state, reason = expected_state(replica(LLAMA_CPP), desired("m", facts=facts("m", architecture="strange")))
    assert state == "unsupported"
    assert "'strange' is not supported by llama_cpp" in reason
    state, reason = expected_state(replica(), desired("m"))
    assert state == "unsupported"
    large = desired("m", facts=facts("m", size=5 * 1024**3))
    assert "needs a GPU" in expected_state(replica(LLAMA_CPP), large)[1]
    assert expected_state(replica(LLAMA_CPP, forced=True), large)[0] == "pending"
    assert expected_state(replica(LLAMA_CPP, device="cuda"), large)[0] == "pending"


def test_the_runtime_that_was_asked_for_must_be_able() -> None:
    assert expected_state(replica(LLAMA_CPP), desired("m", runtime="torch"))[0] == "unsupported"


def test_an_execution_cache_makes_a_model_run_where_its_own_files_do_not() -> None:
    assert expected_state(replica(LLAMA_CPP), SAFETENSORS)[0] == "unsupported"
    assert expected_state(replica(LLAMA_CPP), CACHED)[0] == "pending"
    (verdict,) = explain(replica(LLAMA_CPP), CACHED)
    assert (verdict.chosen, verdict.able) == (True, True)
    assert "nvidia/m@c0ffee" in verdict.reason


def test_a_cache_is_preferred_to_the_models_own_files() -> None:
    both = replica(TORCH, LLAMA_CPP)
    assert reported(both, SAFETENSORS) == [("torch", True, True), ("llama_cpp", False, False)]
    assert reported(both, CACHED) == [("llama_cpp", True, True), ("torch", False, True)]
    assert "execution cache is preferred" in explain(both, CACHED)[1].reason


def test_a_cache_counts_only_where_device_and_runtime_match() -> None:
    both = [("torch", True, True), ("llama_cpp", False, False)]
    assert reported(replica(TORCH, LLAMA_CPP, device="mps"), CACHED) == both
    assert reported(replica(TORCH), CACHED) == [("torch", True, True)]
    assert reported(replica(TORCH, LLAMA_CPP), replace(CACHED, runtime="torch")) == both
    strange = replace(ARTIFACT, facts=facts(architecture="strange"))
    assert reported(replica(TORCH, LLAMA_CPP), replace(SAFETENSORS, artifacts=(strange,))) == both


def test_reason_for_a_skipped_cache_is_reported() -> None:
    def reasons(found: Replica, wanted: DesiredModel) -> dict[str, str]:
        return {verdict.runtime.name: verdict.reason for verdict in explain(found, wanted)}

    elsewhere = reasons(replica(TORCH, LLAMA_CPP, device="mps"), CACHED)
    assert "the execution cache nvidia/m@c0ffee is skipped: it is for c" in elsewhere["llama_cpp"]
    assert elsewhere["llama_cpp"].endswith("and llama_cpp computes on mps here")
    assert "skipped" not in elsewhere["torch"]
    overruled = reasons(replica(TORCH, LLAMA_CPP), replace(CACHED, runtime="torch"))
    assert overruled["llama_cpp"].endswith("it is for llama_cpp, and an operator requested torch")
    assert "the requested runtime 'llama_cpp'" in reasons(replica(TORCH), CACHED)["torch"]
    assert "skipped" not in "".join(reasons(replica(TORCH, LLAMA_CPP), CACHED).values())


def test_measurements_rank() -> None:
    other = replace(LLAMA_CPP, name="other")
    measured = replace(MEASURED, runtime="other")
    assert reported(replica(LLAMA_CPP, other), desired("m"))[0] == ("llama_cpp", True, True)
    assert reported(replica(LLAMA_CPP, other), desired("m", measured=(measured,)))[0] == ("other", True, True)


def test_it_agrees_with_what_services_do() -> None:
    settings = load_settings({}).model
    for wanted in (CACHED, replace(SAFETENSORS, runtime="torch"), desired("m"), replace(CACHED, runtime="llama_cpp")):
        for found in (replica(TORCH, LLAMA_CPP), replica(LLAMA_CPP, TORCH)):
            plan = make_plans(wanted, found.registry, settings)[0]
            chosen = [verdict.runtime for verdict in explain(found, wanted) if verdict.chosen]
            assert chosen == [plan.runtime]
