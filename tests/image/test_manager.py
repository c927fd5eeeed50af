"""The image manager: the worker has the runtimes of the registry, and every listed pipeline exists in diffusers."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest

from services.errors import Unsupported
from services.image.engine.__main__ import RUNTIMES
from services.image.engine.runtime import Runtime
from services.image.manager import WORKER_MODULE
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import RUNTIMES as PROMISED
from tests.image.engine.tiny_pipelines import saved
from tests.image.image_core import stored
from tests.late import late

diffusers = late("diffusers")


def test_the_worker_has_exactly_the_image_runtimes_of_the_registry() -> None:
    assert set(RUNTIMES) == {runtime.name for runtime in PROMISED if runtime.modality == "image"}


@pytest.mark.parametrize("name", sorted(RUNTIMES))
def test_a_runtime_is_in_a_package_of_its_name_and_can_all_that_the_loop_asks(name: str) -> None:
    module, kind = RUNTIMES[name]
    assert module == f"services.image.engine.runtimes.{name}.engine"
    engine = getattr(importlib.import_module(module), kind)
    asked = {member for member, _ in inspect.getmembers(Runtime, inspect.isfunction) if not member.startswith("_")}
    assert asked
    for member in asked:
        theirs, ours = inspect.signature(getattr(Runtime, member)), inspect.signature(getattr(engine, member))
        assert list(ours.parameters) == list(theirs.parameters), member


def test_the_workers_module_can_be_executed() -> None:
    assert importlib.util.find_spec(f"{WORKER_MODULE}.__main__") is not None


def test_every_pipeline_of_the_table_is_in_the_installed_diffusers() -> None:
    (runtime,) = (runtime for runtime in PROMISED if runtime.name == "diffusers")
    there = set(dir(diffusers))
    assert runtime.architectures["image"] <= there
    assert "NoSuchPipeline" not in there


def test_a_pipelines_folder_is_for_diffusers_and_another_class_is_refused_by_name(tmp_path: Path) -> None:
    folder = saved("StableDiffusionPipeline", tmp_path)
    registry = EngineRegistry("cpu", forced=True)
    model = stored("tiny", folder, registry)
    assert (model.desired.facts.modality, model.desired.facts.capabilities) == ("image", frozenset({"image"}))
    assert model.serving is not None
    assert model.serving.runtime.name == "diffusers"
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace("StableDiffusionPipeline", "MarigoldDepthPipeline"))
    with pytest.raises(Unsupported, match="MarigoldDepthPipeline"):
        stored("depth", folder, registry)
