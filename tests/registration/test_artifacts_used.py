"""An official execution cache: fetched, run and shown, where publisher, device and runtime match; never otherwise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_model import demo_model
from loopback_hub import LoopbackHub
from model_folders import safetensors_model
from operator_side import Operator, operating

CACHE = "cache.gguf"


def entry(source: str, repository: str) -> dict[str, object]:
    artifact = {
        "repository": repository,
        "format": "gguf",
        "file": CACHE,
        "runtime": "llama_cpp",
        "devices": ["cpu", "cuda", "mps"],
    }
    return {"source": source, "artifacts": [artifact]}


@pytest.fixture(scope="module")
def environ(session_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two models in safetensors, one with a cache of an allowed publisher and one with a stranger's."""
    top = tmp_path_factory.mktemp("artifacts")
    session_hub.add("qwen/model", safetensors_model(top / "model"))
    session_hub.add("qwen/other", safetensors_model(top / "other"))
    (top / "cache").mkdir()
    shutil.copy(demo_model(), top / "cache" / CACHE)
    session_hub.add("nvidia/model-gguf", top / "cache")
    session_hub.add("stranger/other-gguf", top / "cache")
    supported = top / "supported_models.json"
    models = [entry("qwen/model", "nvidia/model-gguf"), entry("qwen/other", "stranger/other-gguf")]
    supported.write_text(json.dumps({"models": models}))
    return {"ALLM_SUPPORTED_MODELS": str(supported)}


@pytest.fixture(scope="module")
def artifact_operator(
    session_hub: LoopbackHub, environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    with operating(tmp_path_factory.mktemp("auto"), session_hub, **environ) as operator:
        yield operator


def test_an_official_cache_is_fetched_run_and_shown(artifact_operator: Operator, hub: LoopbackHub) -> None:
    operator = artifact_operator
    model = operator.taken("model", "hf://qwen/model", "safetensors")
    shown = operator.until_state("model", "ready")
    assert "Paris" in operator.answer("model")
    (replica,) = operator.until_state("model", "loaded")["replicas"]
    assert replica["artifact"].startswith("nvidia/model-gguf@")
    assert replica["runtime"] == "llama_cpp"
    assert shown["format"] == "safetensors", "the registered format never changes"
    assert model["format"] == "FORMAT_SAFETENSORS"
    assert not hub.asked("model.safetensors", cdn=True)[1:], (
        "its own weights are not needed: only their header was read"
    )


def test_the_same_from_outside_the_list_is_never_asked_for(artifact_operator: Operator, hub: LoopbackHub) -> None:
    operator = artifact_operator
    operator.taken("other", "hf://qwen/other", "safetensors")
    shown = operator.until_state("other", "unsupported")
    assert "architecture 'exotic9000' is not supported by torch" in shown["reason"]
    operator.until(lambda: operator.all()["other"]["replicas"])
    assert hub.requests, "the model itself was looked at"
    assert not [request for request in hub.requests if "stranger" in request.path]


def test_switched_off_none_is_asked_for(hub: LoopbackHub, environ: dict[str, str], tmp_path: Path) -> None:
    with operating(tmp_path, hub, ALLM_ARTIFACTS="off", **environ) as operator:
        operator.taken("model", "hf://qwen/model", "safetensors")
        operator.until_state("model", "unsupported")
        assert not [request for request in hub.requests if "nvidia" in request.path]
