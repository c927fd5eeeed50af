"""An official execution cache: fetched, run and shown, where publisher, device and runtime match; never otherwise."""

from __future__ import annotations

import shutil

import pytest

from tests.demo_model import demo_model
from tests.loopback_hub import LoopbackHub
from tests.operator_side import Operator
from tests.presets import CACHE, CACHES
from tests.registration.model_folders import safetensors_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def published(session_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Adds the models on the artifact list of the stacks, and their caches, to the hub."""
    top = tmp_path_factory.mktemp("artifacts")
    (top / "cache").mkdir()
    shutil.copy(demo_model(), top / "cache" / CACHE)
    for model, cache in CACHES.items():
        session_hub.add(model, safetensors_model(top / model))
        session_hub.add(cache, top / "cache")


def test_an_official_cache_is_fetched_run_and_shown(operator: Operator, published: None, hub: LoopbackHub) -> None:
    model = operator.taken("model", "hf://qwen/model", "safetensors")
    shown = operator.until_state("model", "ready")
    assert "Paris" in operator.answer("model")
    (replica,) = operator.until_state("model", "loaded")["replicas"]
    assert replica["artifact"].startswith("nvidia/model-gguf@")
    assert replica["runtime"] == "llama_cpp"
    assert shown["format"] == "safetensors", "the registered format never changes"
    assert model["format"] == "FORMAT_SAFETENSORS"
    operator.until(lambda: operator.all()["model"]["replicas"][0]["canonical"]["state"] == "ready")
    fetched = {path.name for path in (operator.stack.home / "models" / "model").rglob("*") if path.is_file()}
    assert {CACHE, "model.safetensors"} <= fetched, "its own weights are kept, too"


def test_one_from_outside_the_list_is_never_asked_for(operator: Operator, published: None, hub: LoopbackHub) -> None:
    operator.taken("other", "hf://qwen/other", "safetensors")
    shown = operator.until_state("other", "unsupported")
    assert "architecture 'exotic9000' is not supported by torch" in shown["reason"]
    operator.until(lambda: operator.all()["other"]["replicas"])
    assert hub.requests, "the model itself was looked at"
    assert not [request for request in hub.requests if "stranger" in request.path]


def test_switched_off_none_is_asked_for(two_replicas: Operator, published: None, hub: LoopbackHub) -> None:
    two_replicas.taken("model", "hf://qwen/model", "safetensors")
    two_replicas.until_state("model", "unsupported")
    assert not [request for request in hub.requests if "nvidia" in request.path]
    two_replicas.delete("model")
