"""The audio manager: the worker has the runtimes of the registry, and a model without weights leaves no worker."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from services.audio.engine.__main__ import RUNTIMES
from services.audio.engine.runtime import Runtime
from services.audio.manager import WORKER_MODULE
from services.errors import ModelInvalid
from services.models.registry import RUNTIMES as PROMISED
from services.models.registry import EngineRegistry
from tests.audio.transcribing import stored, transcribing
from tests.whisper_weights import tiny_en_ct2


def test_the_worker_has_exactly_the_audio_runtimes_of_the_registry() -> None:
    assert set(RUNTIMES) == {runtime.name for runtime in PROMISED if runtime.modality == "audio"}


@pytest.mark.parametrize("name", sorted(RUNTIMES))
def test_a_runtime_is_in_a_module_of_its_name_and_can_all_that_the_loop_asks(name: str) -> None:
    module, kind = RUNTIMES[name]
    assert module == f"services.audio.engine.runtimes.{name}"
    engine = getattr(importlib.import_module(module), kind)
    asked = {member for member, _ in inspect.getmembers(Runtime, inspect.isfunction) if not member.startswith("_")}
    assert asked
    for member in asked:
        theirs, ours = inspect.signature(getattr(Runtime, member)), inspect.signature(getattr(engine, member))
        assert list(ours.parameters) == list(theirs.parameters), member


def test_the_workers_module_can_be_executed() -> None:
    assert importlib.util.find_spec(f"{WORKER_MODULE}.__main__") is not None


async def test_model_with_missing_weights_is_reported_by_name_and_leaves_no_worker(tmp_path: Path) -> None:
    async with transcribing(tmp_path, {}) as audio:
        serving = stored("tiny", tiny_en_ct2(), EngineRegistry("cpu", forced=True)).serving
        assert serving
        lost = replace(serving.descriptor, primary=tmp_path / "nothing")
        with pytest.raises(ModelInvalid, match="nothing"):
            async with audio.manager.lease(lost, serving.runtime):
                pass
        assert audio.residents == []
