"""Ollama's endpoints about models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ollama
from allm.models.v1 import model_pb2
from allm.ollama.v1 import models_service_pb2
from google.api import httpbody_pb2

from services.catalog.api.ollama_facade import FOREVER, QUANTIZATION
from tests.case import case
from tests.catalog.api.test_models_facade import refused
from tests.catalog.catalog_service import DOWNLOADING, LOADED, Service, running, status

MEMORY = model_pb2.MemoryStatus(reserved_bytes=900, host_bytes=400)


async def tags(service: Service) -> list[Any]:
    body = await service.ollama.ListTags(models_service_pb2.ListTagsRequest())
    assert ollama.ListResponse(**json.loads(body.data))
    models: list[Any] = json.loads(body.data)["models"]
    return models


async def shown(service: Service, **asked: Any) -> Any:
    body = await service.ollama.ShowModel(httpbody_pb2.HttpBody(data=json.dumps(asked).encode()))
    assert ollama.ShowResponse(**json.loads(body.data))
    return json.loads(body.data)


async def test_ready_models_are_listed_with_tags(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        assert await tags(service) == []
        await service.register("org/a", file="a-Q4_K_M.gguf", aliases=["b:1b"])
        await service.register("c")
        await service.report(complete=True, statuses=[status("org/a", LOADED), status("c", DOWNLOADING)])
        found = await tags(service)
        assert [model["name"] for model in found] == [model["model"] for model in found] == ["org/a:latest", "b:1b"]
        assert found[0]["details"] == {
            "parent_model": "",
            "format": "gguf",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "",
            "quantization_level": "Q4_K_M",
        }
        assert found[0]["size"] > 0
        assert len(found[0]["digest"]) == 64


async def test_models_in_memory(tmp_path: Path) -> None:
    async def running_models() -> Any:
        body = await service.ollama.ListRunning(models_service_pb2.ListRunningRequest())
        assert ollama.ProcessResponse(**json.loads(body.data))
        return json.loads(body.data)["models"]

    async with running(tmp_path) as service:
        for name in ("a", "b", "c"):
            await service.register(name)
        loading = model_pb2.MemoryStatus(loading=True, reserved_bytes=5)
        statuses = [status("a", LOADED, memory=MEMORY), status("b", memory=loading), status("c")]
        await service.report(complete=True, statuses=statuses)
        (model,) = await running_models()
        assert (model["name"], model["model"], model["context_length"]) == ("a:latest", "a:latest", 2048)
        assert (model["size"], model["size_vram"], model["expires_at"]) == (900, 0, FOREVER)
        await service.report("text-2", complete=True, statuses=[status("a", LOADED, memory=MEMORY, device="cuda")])
        (model,) = await running_models()
        assert (model["size"], model["size_vram"]) == (1800, 500)


async def test_one_model(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("org/a")
        await service.report(complete=True, statuses=[status("org/a")])
        for asked in ({"model": "org/a"}, {"model": "org/a:latest"}, {"name": "org/a", "verbose": True}):
            with case(asked=asked):
                model = await shown(service, **asked)
                assert model["capabilities"] == ["completion", "tools"]
                assert model["model_info"]["general.architecture"] == "llama"
                assert model["model_info"]["llama.context_length"] == 2048
                assert model["modelfile"].startswith("FROM file:///")


async def test_models_that_cannot_be_shown(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("a")
        http_status, error = await refused(shown(service, model="a"))
        assert (http_status, error["code"]) == ("404", "model_not_found")
        http_status, error = await refused(shown(service, model="nobody:latest"))
        assert (http_status, error["message"]) == ("404", "The model `nobody` does not exist.")
        assert (await refused(shown(service)))[1]["param"] == "model"


async def test_the_version_has_three_numbers(tmp_path: Path) -> None:
    """Open WebUI compares them."""
    async with running(tmp_path) as service:
        body = await service.ollama.GetVersion(models_service_pb2.GetVersionRequest())
        assert len([int(part) for part in json.loads(body.data)["version"].split(".")]) == 3


def test_quantization_in_file_names() -> None:
    for name, expected in (
        ("m-Q8_0.gguf", "Q8_0"),
        ("m.q4_k_m.gguf", "q4_k_m"),
        ("folder/IQ2_XXS-00001-of-00002.gguf", None),
        ("m-IQ2_XXS-00001-of-00002.gguf", "IQ2_XXS"),
        ("m.BF16.gguf", "BF16"),
        ("model.gguf", None),
        ("Q8-model.gguf", "Q8"),
    ):
        with case(name=name):
            found = QUANTIZATION.search(name)
            assert (found[1] if found else None) == expected
