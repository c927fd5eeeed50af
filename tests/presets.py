"""The stacks that several files share. A test requests one by its name, and leaves it unchanged.

A test restores whatever it kills before it ends: the next test, of another file, finds the stack healthy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.demo_model import demo_model
from tests.loopback_hub import LoopbackHub
from tests.minilm import ENCODER, minilm
from tests.models.gguf_file import llama
from tests.operator_side import Operator, operating
from tests.stack import IMAGE_MODEL, MODEL, SPEECH_MODEL, Stack, running_stack
from tests.whisper_weights import tiny_en_ct2

SHAPES = Path(__file__).parent.parent / "training" / "shapes_sd" / "weights"
# Models of `breakable` that cannot be loaded.
BROKEN, STRANGE, HOLLOW = "broken", "strange", "hollow"
# Models in safetensors for which official lists name a GGUF cache, by their names on the hub: the publisher of one
# is on the list of publishers, that of the other is not.
CACHES = {"qwen/model": "nvidia/model-gguf", "qwen/other": "stranger/other-gguf"}
CACHE = "cache.gguf"


def preset(function: Callable[..., Iterator[Any]]) -> Any:
    """Returns a session fixture whose tests all run in one process: the scheduler uses the id."""
    return pytest.fixture(scope="session", params=[pytest.param(None, id=f"on_{function.__name__}")])(function)


@pytest.fixture(scope="session")
def session_hub() -> Iterator[LoopbackHub]:
    """The hub that the stacks in this file use."""
    with LoopbackHub() as hub:
        yield hub


@preset
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All services and a model of every kind, for tests that stop or kill nothing."""
    models = {MODEL: demo_model(), ENCODER: minilm(), SPEECH_MODEL: tiny_en_ct2(), IMAGE_MODEL: SHAPES}
    settings = {
        "ALLM_MODELS": named(models),
        "ALLM_AUDIO_REPLICAS": "1",
        "ALLM_IMAGE_REPLICAS": "1",
        "ALLM_DTYPE": "float32",  # vectors are compared exactly
    }
    with running_stack(tmp_path_factory.mktemp("allm"), **settings) as running:
        yield running


@preset
def shared_operator(session_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """An operator of a stack that no test breaks."""
    home = tmp_path_factory.mktemp("allm")
    with operating(home, session_hub, **supported(home)) as operator:
        yield operator


@preset
def breakable(session_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """All services, which may be killed; one good model and some that cannot be loaded."""
    home = tmp_path_factory.mktemp("breakable")
    strange = llama(home / f"{STRANGE}.gguf", architecture="made-up")
    hollow = llama(home / f"{HOLLOW}.gguf")  # a complete header without weights
    broken = home / f"{BROKEN}.gguf"
    broken.write_bytes(hollow.read_bytes()[:-8])
    models = {MODEL: demo_model(), BROKEN: broken, STRANGE: strange, HOLLOW: hollow}
    settings = {"ALLM_MODELS": named(models), "ALLM_AUDIO_REPLICAS": "1", "ALLM_IMAGE_REPLICAS": "1"}
    with operating(home, session_hub, **settings) as operator:
        yield operator


@preset
def two_replicas(session_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """Two replicas of the text service and two of the image service; they may be killed. No cache is used."""
    home = tmp_path_factory.mktemp("two")
    settings = {
        "ALLM_MODELS": named({MODEL: demo_model(), IMAGE_MODEL: SHAPES}),
        "ALLM_TEXT_REPLICAS": "2",
        "ALLM_IMAGE_REPLICAS": "2",
        "ALLM_THREADS": "1",
        "ALLM_ARTIFACTS": "off",
        "ALLM_HANG_SECONDS": "0",  # a test suspends a replica, and resumes it
    }
    with operating(home, session_hub, **settings, **supported(home)) as operator:
        yield operator


@preset
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that requires keys and refuses unknown parameters; catalog, authorizer and gateway may be killed."""
    home = tmp_path_factory.mktemp("keys") / "home"
    home.mkdir()
    (home / "identity.secret").write_text("of an earlier release")
    # A test suspends the catalog, and resumes it.
    settings = {"ALLM_AUTH": "keys", "ALLM_UNKNOWN_PARAMETERS": "refuse", "ALLM_HANG_SECONDS": "0"}
    with running_stack(home, **settings) as running:
        yield running


def named(models: dict[str, Path]) -> str:
    """Formats models for ALLM_MODELS."""
    return ",".join(f"{name}={path}" for name, path in models.items())


def supported(home: Path) -> dict[str, str]:
    """Writes a list of known caches to this folder, and returns the setting that names it."""
    about = {"format": "gguf", "file": CACHE, "runtime": "llama_cpp", "devices": ["cpu", "cuda", "mps"]}
    models = [{"source": model, "artifacts": [{"repository": cache, **about}]} for model, cache in CACHES.items()]
    path = home / "supported_models.json"
    path.write_text(json.dumps({"models": models}))
    return {"ALLM_SUPPORTED_MODELS": str(path)}
