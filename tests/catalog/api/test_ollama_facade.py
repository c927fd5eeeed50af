"""Ollama's endpoints about models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import ollama
from allm.models.v1 import model_pb2
from allm.ollama.v1 import models_service_pb2
from google.api import httpbody_pb2
from google.protobuf import timestamp_pb2

from services.catalog.api.ollama_facade import FOREVER
from tests.case import case
from tests.catalog.api.test_models_facade import refused
from tests.catalog.catalog_service import DOWNLOADING, FAILED, LOADED, READY, Service, running, status
from tests.catalog.model_files import gguf
from tests.loopback_hub import LoopbackHub

VERIFYING = model_pb2.MODEL_STATE_VERIFYING
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
        kept = model_pb2.MemoryStatus(reserved_bytes=900, expire_time=timestamp_pb2.Timestamp(seconds=60))
        await service.report(statuses=[status("a", LOADED, memory=kept)])
        (model,) = await running_models()
        assert model["expires_at"] == "1970-01-01T00:01:00Z"
        await service.report("text-2", complete=True, statuses=[status("a", LOADED, memory=MEMORY, device="cuda")])
        (model,) = await running_models()
        assert (model["size"], model["size_vram"], model["expires_at"]) == (1800, 500, FOREVER)


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


REFERENCE = "hf.co/org/tiny-GGUF:Q8_0"


async def lines(call: Any) -> list[Any]:
    data = b"".join([piece.data async for piece in call])
    found = [json.loads(line) for line in data.splitlines()]
    assert all(ollama.ProgressResponse(**line).status for line in found if "error" not in line)
    return found


async def next_line(call: Any) -> Any:
    """Reads the next line that says more than that no replica has begun."""
    while (line := json.loads((await call.read()).data)).get("status", "").startswith("waiting"):
        pass
    return line


def pull(service: Service, **asked: Any) -> Any:
    return service.ollama.PullModel(httpbody_pb2.HttpBody(data=json.dumps(asked).encode()))


async def test_a_model_is_pulled_with_its_progress(tmp_path: Path, hub: LoopbackHub) -> None:
    hub.add("org/tiny-GGUF", gguf(tmp_path / "repository" / "tiny-Q8_0.gguf").parent)
    async with running(tmp_path) as service:
        await service.report(complete=True)
        call = pull(service, model=REFERENCE, insecure=True)
        first = await call.read()
        assert (first.content_type, first.data) == ("application/x-ndjson", b'{"status":"pulling manifest"}\n')
        model = await service.get(REFERENCE)
        assert model.source == "hf://org/tiny-GGUF#tiny-Q8_0.gguf"
        for state, more in ((DOWNLOADING, {"done_bytes": 1, "total_bytes": 9}), (VERIFYING, {}), (READY, {})):
            await service.report(statuses=[status(REFERENCE, state, **more)])
            line = await next_line(call)
            if state == DOWNLOADING:
                digest = line.pop("digest").removeprefix("sha256:")
                assert line == {"status": f"pulling {digest[:12]}", "total": model.size_bytes, "completed": 1}
            elif state == VERIFYING:
                assert line == {"status": "verifying sha256 digest"}
            else:
                assert line == {"status": "success"}
        assert await call.read() is grpc.aio.EOF
        again = await lines(pull(service, name="huggingface.co/org/tiny-GGUF:Q8_0"))
        assert again == [{"status": "pulling manifest"}, {"status": "success"}], "it is there"
        assert await lines(pull(service, model=REFERENCE, stream=False)) == [{"status": "success"}]


async def test_a_pull_that_fails(tmp_path: Path, hub: LoopbackHub) -> None:
    hub.add("org/tiny-GGUF", gguf(tmp_path / "repository" / "tiny-Q8_0.gguf").parent)
    async with running(tmp_path) as service:
        http_status, error = await refused(pull(service, model="llama3.2").read())
        assert (http_status, error["param"]) == ("400", "model")
        assert "hf.co/ORG/NAME:QUANTIZATION" in error["message"]
        http_status, error = await refused(pull(service, model="hf.co/org/tiny-GGUF:Q4_0").read())
        assert (http_status, error["code"]) == ("400", "model_invalid")
        assert "it has Q8_0" in error["message"]
        assert (await refused(pull(service, model="hf.co/org/nothing").read()))[0] == "400"
        assert (await refused(pull(service).read()))[1]["param"] == "model"
        await service.report(complete=True)
        call = pull(service, model=REFERENCE)
        assert b"manifest" in (await call.read()).data
        await service.report(statuses=[status(REFERENCE, FAILED, reason="no room")])
        assert await next_line(call) == {"error": "no room"}


async def test_models_are_deleted(tmp_path: Path) -> None:
    async def delete(name: str) -> Any:
        body = await service.ollama.DeleteModel(httpbody_pb2.HttpBody(data=json.dumps({"model": name}).encode()))
        return json.loads(body.data)

    async with running(tmp_path) as service:
        await service.register("a", aliases=["b"])
        await service.report(complete=True, statuses=[status("a")])
        http_status, error = await refused(delete("b"))
        assert (http_status, error["param"]) == ("400", "model")
        assert "`b` is an alias of the model `a`" in error["message"]
        assert await delete("a:latest") == {"status": "success"}
        assert await tags(service) == []
        assert (await refused(delete("a")))[0] == "404"
