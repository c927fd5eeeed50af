"""hf:// sources and their execution caches on a loopback hub: the files listed, and the files never requested."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.models.v1 import model_service_pb2

from tests.catalog.catalog_service import PENDING, UNSUPPORTED, Service, llama_cpp, refusal, running, snapshot, torch
from tests.catalog.model_files import gguf, safetensors
from tests.loopback_hub import LISTING, LoopbackHub

Code = grpc.StatusCode
CACHE = {"repository": "nvidia/m-gguf", "format": "gguf", "runtime": "llama_cpp", "devices": ["cpu"]}


@pytest.fixture
def commits(hub: LoopbackHub, tmp_path: Path) -> dict[str, str]:
    """Returns the commits of a model and of its two execution caches, an official publisher's and a stranger's."""
    cache = gguf(tmp_path / "cache" / "m.gguf").parent
    return {
        "org/m": hub.add("org/m", safetensors(tmp_path / "own")),
        "nvidia/m-gguf": hub.add("nvidia/m-gguf", cache),
        "stranger/m-gguf": hub.add("stranger/m-gguf", cache),
    }


def supported(folder: Path, *artifacts: dict[str, Any]) -> str:
    path = folder / "supported.json"
    path.write_text(json.dumps({"models": [{"source": "org/m", "artifacts": list(artifacts)}]}))
    return str(path)


async def registered(service: Service, **more: str):
    """Registers the model and returns it as services receive it."""
    request = {"id": "m", "source": "hf://org/m", "format": "safetensors"} | more
    await service.models.RegisterModel(model_service_pb2.RegisterModelRequest(**request))
    (desired,) = await snapshot(service.watch())
    return desired


def asked_for(hub: LoopbackHub, repository: str) -> list[str]:
    return [request.path for request in hub.requests if repository in request.path]


async def test_a_model_is_pinned_and_no_weight_is_fetched(
    tmp_path: Path, hub: LoopbackHub, commits: dict[str, str]
) -> None:
    async with running(tmp_path) as service:
        desired = await registered(service)
        assert (desired.model.source, desired.model.revision) == ("hf://org/m", commits["org/m"])
        assert (desired.manifest.repository, desired.manifest.revision) == ("org/m", commits["org/m"])
        hashes = {file.path: file.sha256 for file in desired.manifest.files}
        assert set(hashes) == {"config.json", "model.safetensors", "tokenizer.json"}
        assert len(hashes["model.safetensors"]) == 64
        assert list(desired.artifacts) == []


async def test_a_short_source_is_found_and_nothing_is_registered(
    tmp_path: Path, hub: LoopbackHub, commits: dict[str, str]
) -> None:
    local = gguf(tmp_path / "models" / "Mine-Q8_0.gguf")
    async with running(tmp_path) as service:

        async def found(source: str) -> tuple[str, str, str]:
            answer = await service.models.FindSource(model_service_pb2.FindSourceRequest(source=source))
            return answer.id, answer.source, answer.format

        assert await found("org/m") == ("m", "hf://org/m", "safetensors")
        assert await found("nvidia/m-gguf") == ("m", "hf://nvidia/m-gguf#m.gguf", "gguf")
        error = await refusal(found("org/m:Q4_K_M"))
        assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, "MODEL_INVALID")
        assert "has no 'Q4_K_M'" in error.message
        error = await refusal(found("m"))
        assert (error.code, error.param) == (Code.INVALID_ARGUMENT, "source")
        error = await refusal(found("file:///etc/hostname"))
        assert "ALLM_MODEL_ROOTS" in error.message
        assert local.exists()
        assert await snapshot(service.watch()) == []


async def test_update_pins_what_the_branch_is_now(tmp_path: Path, hub: LoopbackHub, commits: dict[str, str]) -> None:
    async with running(tmp_path) as service:
        await registered(service)
        request = model_service_pb2.UpdateModelRequest(id="m")
        assert (await service.models.UpdateModel(request)).model.generation == 1
        newer = hub.add("org/m", safetensors(tmp_path / "own", architecture="qwen3"))
        model = (await service.models.UpdateModel(request)).model
        assert (model.generation, model.revision, model.architecture) == (2, newer, "qwen3")


async def test_a_hub_that_fails(tmp_path: Path, hub: LoopbackHub, commits: dict[str, str]) -> None:
    async with running(tmp_path) as service:
        error = await refusal(registered(service, source="hf://org/none"))
        assert (error.code, "hf://org/none" in error.message) == (Code.FAILED_PRECONDITION, True)
        hub.status(LISTING, 429, times=2, headers={"retry-after": "7"})
        assert (await refusal(registered(service))).code == Code.RESOURCE_EXHAUSTED
        assert (await refusal(service.get("m"))).code == Code.NOT_FOUND
        hub.heal()
        assert (await registered(service)).model.id == "m", "nothing of the attempts is left"


async def test_an_official_cache_is_kept_with_the_model(
    tmp_path: Path, hub: LoopbackHub, commits: dict[str, str]
) -> None:
    async with running(tmp_path, ALLM_SUPPORTED_MODELS=supported(tmp_path, CACHE)) as service:
        desired = await registered(service)
        (artifact,) = desired.artifacts
        assert (artifact.runtime, list(artifact.devices), artifact.architecture) == ("llama_cpp", ["cpu"], "llama")
        assert (artifact.manifest.repository, artifact.manifest.revision) == (
            "nvidia/m-gguf",
            commits["nvidia/m-gguf"],
        )
        assert [file.path for file in artifact.manifest.files] == ["m.gguf"]
        assert desired.model.format != artifact.format, "the registered format never changes"
        await service.report(complete=True, device="mps")
        assert (await service.get("m")).state == UNSUPPORTED
        await service.report(complete=True)
        assert (await service.get("m")).state == PENDING
        await service.report(complete=True, runtimes=[torch(), llama_cpp()])
        request = model_service_pb2.ExplainModelRequest(id="m")
        (resolution,) = (await service.models.ExplainModel(request)).resolutions
        assert [(one.runtime, one.chosen) for one in resolution.runtimes] == [("llama_cpp", True), ("torch", False)]
        assert f"nvidia/m-gguf@{commits['nvidia/m-gguf']}" in resolution.runtimes[0].reason
    async with running(tmp_path) as service:  # read from the database, not from the current file
        (again,) = await snapshot(service.watch())
        assert list(again.artifacts) == [artifact]


@pytest.mark.parametrize(
    ("environ", "repository"),
    [
        ({}, "stranger/m-gguf"),
        ({"ALLM_ARTIFACT_PUBLISHERS": "openai/*"}, "nvidia/m-gguf"),
        ({"ALLM_ARTIFACT_PUBLISHERS": "nvidia/other"}, "nvidia/m-gguf"),
        ({"ALLM_ARTIFACTS": "off"}, "nvidia/m-gguf"),
    ],
)
async def test_disallowed_repositories_are_never_requested(
    tmp_path: Path,
    hub: LoopbackHub,
    commits: dict[str, str],
    environ: dict[str, str],
    repository: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = supported(tmp_path, CACHE | {"repository": repository})
    with caplog.at_level(logging.WARNING):
        async with running(tmp_path, ALLM_SUPPORTED_MODELS=path, **environ) as service:
            assert list((await registered(service)).artifacts) == []
    assert asked_for(hub, repository) == []
    assert asked_for(hub, "org/m") != []
    assert [record.artifact for record in caplog.records if "skipped" in record.getMessage()] == [repository]


@pytest.mark.parametrize("environ", [{"ALLM_ARTIFACTS": "off"}, {"ALLM_ARTIFACT_PUBLISHERS": "openai/*"}])
async def test_a_cache_of_earlier_is_not_handed_out_once_it_is_not_allowed(
    tmp_path: Path, hub: LoopbackHub, commits: dict[str, str], environ: dict[str, str]
) -> None:
    async with running(tmp_path, ALLM_SUPPORTED_MODELS=supported(tmp_path, CACHE)) as service:
        assert len((await registered(service)).artifacts) == 1
    async with running(tmp_path, **environ) as service:
        (desired,) = await snapshot(service.watch())
        assert list(desired.artifacts) == []
        await service.models.UnloadModel(model_service_pb2.UnloadModelRequest(id="m"))
    async with running(tmp_path) as service:
        (desired,) = await snapshot(service.watch())
        assert len(desired.artifacts) == 1, "it was hidden, not lost"


async def test_a_cache_that_cannot_be_had_does_not_harm_the_model(
    tmp_path: Path, hub: LoopbackHub, commits: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "m.gguf").write_bytes(b"GGUF is what it says")
    hub.add("nvidia/broken", tmp_path / "broken")
    wanted = [CACHE | {"repository": name} for name in ("nvidia/none", "nvidia/broken")] + [CACHE]
    async with running(tmp_path, ALLM_SUPPORTED_MODELS=supported(tmp_path, *wanted)) as service:
        desired = await registered(service)
        assert [artifact.manifest.repository for artifact in desired.artifacts] == ["nvidia/m-gguf"]
    skipped = [record.artifact for record in caplog.records if "skipped" in record.getMessage()]
    assert skipped == ["nvidia/none", "nvidia/broken"]


async def test_caches_belong_to_safetensors_of_the_hub(
    tmp_path: Path, hub: LoopbackHub, commits: dict[str, str]
) -> None:
    path = supported(tmp_path, CACHE)
    hub.add("org/m", gguf(tmp_path / "gguf" / "m.gguf").parent)
    async with running(tmp_path, ALLM_SUPPORTED_MODELS=path) as service:
        assert list((await registered(service, format="gguf")).artifacts) == []
        assert asked_for(hub, "nvidia/m-gguf") == []
