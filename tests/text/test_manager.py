"""The worker's table of runtimes matches the registry; the run options of a model and the environment of its worker."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from services.errors import Internal
from services.models.descriptor import EngineSettings, ModelDescriptor, describe
from services.models.formats.inspect import inspect as inspect_files
from services.models.hub.source import LocalTree
from services.models.runtimes import RUNTIMES as PROMISED
from services.settings.settings import load_settings
from services.text.engine.__main__ import RUNTIMES
from services.text.engine.embedding_loop import Encoder
from services.text.engine.pairs import Reranker
from services.text.engine.runtime import Runtime
from services.text.manager import WORKER_MODULE, TextManager, vllm_environ
from services.text.memory_estimate import TextMemoryEstimate
from tests.demo_model import demo_safetensors

LISTED = [(capability, name) for capability, table in RUNTIMES.items() for name in sorted(table)]
PROTOCOLS = {"chat": Runtime, "embeddings": Encoder, "rerank": Reranker}
# vLLM has its own environment and its own loop: test_runtime_contract.py tests it.
IMPORTED = [(capability, name) for capability, name in LISTED if name != "vllm"]
VLLM = next(runtime for runtime in PROMISED if runtime.name == "vllm")
TORCH = next(runtime for runtime in PROMISED if runtime.name == "torch")


def test_the_worker_has_exactly_the_text_runtimes_of_the_registry() -> None:
    promised = {
        (name, runtime.name) for runtime in PROMISED if runtime.modality == "text" for name in runtime.architectures
    }
    loaded = {("chat" if name == "vision" else name, runtime) for name, runtime in promised}
    assert set(LISTED) == loaded


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


def descriptor(**engine) -> ModelDescriptor:
    folder = demo_safetensors()
    tree = LocalTree(folder, [folder])
    finding = inspect_files(tree, "safetensors", "")
    return describe(finding.facts("demo"), 1, finding.manifest(tree), folder, engine=EngineSettings(**engine))


def manager(tmp_path: Path, **settings: str) -> TextManager:
    return TextManager(load_settings({"ALLM_HOME": str(tmp_path), **settings}).text)


async def test_registration_overrides_the_settings(tmp_path: Path) -> None:
    made = manager(tmp_path, ALLM_CONTEXT_TOKENS="4096", ALLM_DTYPE="float32", ALLM_MAX_SEQUENCES="7")
    plain = made.options(descriptor(), VLLM)
    assert (plain.context_tokens, plain.dtype, plain.max_sequences) == (4096, "float32", 7)
    assert (plain.tensor_parallel, plain.pipeline_parallel, plain.ray_address) == (1, 1, "")
    own = {"context_tokens": 512, "dtype": "bfloat16", "max_sequences": 3, "kv_tokens": 2048}
    options = made.options(descriptor(tensor_parallel=2, pipeline_parallel=4, **own), VLLM)
    assert options == replace(plain, tensor_parallel=2, pipeline_parallel=4, **own)


async def test_vllm_keeps_to_itself_and_to_this_machine(tmp_path: Path) -> None:
    options = manager(tmp_path).options(descriptor(), VLLM)
    alone = vllm_environ(options, tmp_path)
    assert alone["VLLM_NO_USAGE_STATS"] == alone["DO_NOT_TRACK"] == "1"
    assert alone["VLLM_PLUGINS"] == ""
    assert alone["VLLM_HOST_IP"] == "127.0.0.1"
    assert all(alone[name].startswith(str(tmp_path)) for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR"))
    shared = vllm_environ(replace(options, ray_address="10.0.0.1:6379"), tmp_path)
    assert shared["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert "VLLM_HOST_IP" not in shared
    assert shared["NCCL_SOCKET_IFNAME"] == shared["GLOO_SOCKET_IFNAME"] == ""


@pytest.mark.parametrize(
    ("changes", "compilers", "compiles"),
    [
        ({"compiled": True}, ["g++"], True),
        ({"compiled": True}, ["clang++"], True),
        ({"compiled": True}, [], False),
        ({"compiled": True, "gpu": True}, [], True),
        ({"compiled": False}, ["g++"], False),
        ({"compiled": False, "gpu": True}, ["g++"], False),
        ({"compiled": False, "pipeline_parallel": 2}, ["g++"], True),
    ],
)
async def test_nothing_is_compiled_where_the_model_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, compilers: list[str], compiles: bool
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name in compilers else None)
    options = replace(manager(tmp_path).options(descriptor(), VLLM), **changes)
    assert ("TORCH_COMPILE_DISABLE" not in vllm_environ(options, tmp_path)) == compiles


async def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    nowhere = tmp_path / "python"
    made = manager(tmp_path, ALLM_VLLM_PYTHON=str(nowhere))
    with pytest.raises(Internal, match=str(nowhere)):
        async with made.lease(descriptor(), VLLM):
            pass
    await made.close()


async def test_the_estimate_follows_the_registration(tmp_path: Path) -> None:
    made = manager(tmp_path, ALLM_VLLM_COMPILE="off")
    need = TextMemoryEstimate(load_settings({"ALLM_HOME": str(tmp_path)}).text, made.options)
    small, large = (need(descriptor(kv_tokens=cells, context_tokens=1024), VLLM) for cells in (4096, 8192))
    assert large.parts["cache"] - small.parts["cache"] == 4096 * 30 * 2 * 3 * 64 * 2
    assert small.parts["worker"] > need(descriptor(), TORCH).parts["worker"]
