"""The worker's table of runtimes matches the registry."""

from __future__ import annotations

import importlib
import inspect

import pytest

from services.models.registry import RUNTIMES as PROMISED
from services.text.engine.__main__ import RUNTIMES
from services.text.engine.encoder import Encoder
from services.text.engine.runtime import Runtime
from services.text.manager import WORKER_MODULE

LISTED = [(capability, name) for capability, table in RUNTIMES.items() for name in sorted(table)]
PROTOCOLS = {"chat": Runtime, "embeddings": Encoder}
# vLLM has its own environment and its own loop: test_runtime_contract.py tests it.
IMPORTED = [(capability, name) for capability, name in LISTED if name != "vllm"]


def test_the_worker_has_exactly_the_text_runtimes_of_the_registry() -> None:
    promised = [runtime for runtime in PROMISED if runtime.modality == "text"]
    assert set(LISTED) == {(capability, runtime.name) for runtime in promised for capability in runtime.architectures}


@pytest.mark.parametrize(("capability", "name"), LISTED)
def test_a_runtime_is_in_modules_of_its_name(capability: str, name: str) -> None:
    module, _ = RUNTIMES[capability][name]
    assert module.startswith(f"services.text.engine.runtimes.{name}")
    assert importlib.util.find_spec(module) is not None


@pytest.mark.parametrize(("capability", "name"), IMPORTED)
def test_a_runtime_can_all_that_its_loop_asks(capability: str, name: str) -> None:
    module, kind = RUNTIMES[capability][name]
    engine, protocol = getattr(importlib.import_module(module), kind), PROTOCOLS[capability]
    asked = {member for member, _ in inspect.getmembers(protocol, inspect.isfunction) if not member.startswith("_")}
    assert asked
    for member in asked:
        theirs, ours = inspect.signature(getattr(protocol, member)), inspect.signature(getattr(engine, member))
        assert list(ours.parameters) == list(theirs.parameters), member


def test_the_workers_module_can_be_executed() -> None:
    assert importlib.util.find_spec(f"{WORKER_MODULE}.__main__") is not None
