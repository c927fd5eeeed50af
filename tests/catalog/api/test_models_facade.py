"""GET /v1/models: ready models in OpenAI's format, all models on request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
from allm.models.v1 import model_pb2
from allm.openai.v1 import error_pb2, models_service_pb2

from tests.catalog.catalog_service import DOWNLOADING, FAILED, LOADED, READY, Service, running, status


async def listing(service: Service, state: str = "") -> Any:
    body = await service.facade.ListModels(models_service_pb2.ListModelsRequest(state=state))
    assert body.content_type == "application/json"
    return json.loads(body.data)


async def ids(service: Service) -> list[str]:
    return [model["id"] for model in (await listing(service))["data"]]


async def got(service: Service, model_id: str) -> Any:
    body = await service.facade.GetModel(models_service_pb2.GetModelRequest(id=model_id))
    return json.loads(body.data)


async def refused(call: Any) -> tuple[str, dict[str, Any]]:
    """Returns the HTTP status and OpenAI's error object."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
        reported = error_pb2.ErrorStatus.FromString(trailers["grpc-status-details-bin"]).error
        values = {"message": reported.message, "param": reported.param.string_value, "code": reported.code.string_value}
        return trailers["x-http-status"], values
    raise AssertionError(f"no error but {answer}")


async def test_ready_models_are_listed_in_openais_format_under_ids_and_aliases(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        assert await listing(service) == {"object": "list", "data": []}
        created = (await service.register("org/b", aliases=["z", "y"])).create_time.seconds
        for name in ("a", "c", "d"):
            await service.register(name)
        assert await ids(service) == []
        statuses = [status("org/b", LOADED), status("a", READY), status("c", DOWNLOADING), status("d", FAILED)]
        await service.report(complete=True, statuses=statuses)
        assert await ids(service) == ["a", "org/b", "z", "y"]
        assert (await listing(service))["data"][1] == {
            "id": "org/b",
            "object": "model",
            "created": created,
            "owned_by": "allm",
            "context_length": 2048,
            "capabilities": ["chat"],
        }


async def test_anthropics_clients_get_pages_in_their_format(tmp_path: Path) -> None:
    header = (("anthropic-version", "2023-06-01"),)

    async def page(**asked: Any) -> tuple[list[str], bool]:
        body = await service.facade.ListModels(models_service_pb2.ListModelsRequest(**asked), metadata=header)
        found = json.loads(body.data)
        listed = [model["id"] for model in found["data"]]
        assert (found["first_id"], found["last_id"]) == ((listed[0], listed[-1]) if listed else (None, None))
        return listed, found["has_more"]

    async with running(tmp_path) as service:
        assert await page() == ([], False)
        for name in ("a", "b", "c", "d"):
            await service.register(name, aliases=["z"] if name == "a" else [])
        await service.report(complete=True, statuses=[status(name) for name in ("a", "b", "c")])
        assert await page() == (["a", "z", "b", "c"], False)
        assert await page(limit="3") == (["a", "z", "b"], True)
        assert await page(limit="3", after_id="b") == (["c"], False)
        assert await page(limit="1", before_id="c") == (["b"], True)
        assert await page(after_id="a", before_id="c") == (["z", "b"], False)
        assert await page(after_id="c", before_id="a") == ([], False)
        for asked, named in (
            ({"limit": "0"}, "limit"),
            ({"limit": "1001"}, "limit"),
            ({"limit": "x"}, "limit"),
            ({"after_id": "d"}, "after_id"),
        ):
            request = models_service_pb2.ListModelsRequest(**asked)
            outcome, error = await refused(service.facade.ListModels(request, metadata=header))
            assert (outcome, error["param"]) == ("400", named)
        body = await service.facade.GetModel(models_service_pb2.GetModelRequest(id="z"), metadata=header)
        model = json.loads(body.data)
        assert model.pop("created_at").endswith("+00:00")
        sizes = {"max_input_tokens": 2048, "max_tokens": 2048}
        assert model == {"type": "model", "id": "z", "display_name": "z", "lifecycle": "active", **sizes}


async def test_the_list_follows_every_change(tmp_path: Path) -> None:
    """The catalog caches the list between requests; every change must invalidate it."""
    async with running(tmp_path) as service:
        await service.register("m")
        await service.report(complete=True, statuses=[status("m")])
        assert await ids(service) == ["m"]
        await service.register("n")
        await service.report(statuses=[status("n")])
        assert await ids(service) == ["m", "n"]
        await service.report(statuses=[status("m", FAILED)])
        assert await ids(service) == ["n"]
        await service.facade.DeleteModel(models_service_pb2.DeleteModelRequest(id="n"))
        assert await ids(service) == []
        await service.report(statuses=[status("m")])
        assert await ids(service) == ["m"]
        await service.report(leaving=True)
        assert await ids(service) == []


async def test_all_of_them_with_all_that_is_known(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        model = await service.register("m", aliases=["a"])
        await service.register("n")
        said = status("m", DOWNLOADING, done_bytes=1, total_bytes=4, reason="25 % done")
        await service.report("text-1", complete=True, statuses=[said])
        further = status("m", DOWNLOADING, done_bytes=2, total_bytes=4, artifact="nvidia/m@1", runtime="llama_cpp")
        own = model_pb2.CanonicalFiles(state=DOWNLOADING, done_bytes=3, total_bytes=9)
        further.status.canonical.CopyFrom(own)
        await service.report("text-2", complete=True, statuses=[further])
        first, second = (await listing(service, "all"))["data"]
        replicas = first.pop("replicas")
        assert first == {
            "id": "m",
            "object": "model",
            "created": model.create_time.seconds,
            "owned_by": "allm",
            "context_length": 2048,
            "capabilities": ["chat"],
            "aliases": ["a"],
            "state": "downloading",
            "reason": "25 % done",
            "runtime": "",
            "format": "gguf",
            "modality": "text",
            "source": model.source,
            "declared": False,
            "size_bytes": model.size_bytes,
            "progress": {"done_bytes": 2, "total_bytes": 4},
        }
        assert [replica["replica"] for replica in replicas] == ["text-1", "text-2"]
        assert replicas[1] == {
            "replica": "text-2",
            "state": "downloading",
            "reason": "",
            "runtime": "llama_cpp",
            "device": "cpu",
            "generation": 1,
            "artifact": "nvidia/m@1",
            "done_bytes": 2,
            "total_bytes": 4,
            "memory": None,
            "canonical": {"state": "downloading", "reason": "", "done_bytes": 3, "total_bytes": 9},
        }
        assert (second["id"], second["state"], second["progress"], second["replicas"]) == ("n", "pending", None, [])


async def test_memory_of_a_replica(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("m")
        taken = model_pb2.MemoryStatus(pinned=True, reserved_bytes=3, host_bytes=2, requests=1)
        taken.last_use_time.seconds, taken.expire_time.seconds = 7, 9
        await service.report(complete=True, statuses=[status("m", LOADED, memory=taken)])
        (model,) = (await listing(service, "all"))["data"]
        assert model["replicas"][0]["memory"] == {
            "loading": False,
            "pinned": True,
            "reserved_bytes": 3,
            "host_bytes": 2,
            "requests": 1,
            "last_used": 7,
            "expires": 9,
        }


async def test_another_state_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        code, reported = await refused(listing(service, "ready"))
        assert (code, reported["param"]) == ("400", "state")
        assert "'ready'" in reported["message"]


async def test_one_model(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        model = await service.register("org/m", aliases=["a"])
        code, reported = await refused(got(service, "org/m"))
        assert (code, reported["code"]) == ("404", "model_not_found")
        assert reported["message"].endswith("it is unsupported: no text service is running")
        await service.report(complete=True, statuses=[status("org/m")])
        expected = {"object": "model", "created": model.create_time.seconds, "owned_by": "allm"}
        expected |= {"context_length": 2048, "capabilities": ["chat"]}
        assert await got(service, "org/m") == {"id": "org/m"} | expected
        assert await got(service, "a") == {"id": "a"} | expected
        code, reported = await refused(got(service, "none"))
        assert (code, reported["code"], reported["message"]) == (
            "404",
            "model_not_found",
            "The model `none` does not exist.",
        )
        code, reported = await refused(got(service, ""))
        assert (code, reported["param"]) == ("400", "id")


async def test_delete(tmp_path: Path) -> None:
    async with running(tmp_path) as service:

        async def delete(model_id: str) -> Any:
            body = await service.facade.DeleteModel(models_service_pb2.DeleteModelRequest(id=model_id))
            return json.loads(body.data)

        await service.register("org/m", aliases=["a"])
        code, reported = await refused(delete("a"))
        assert (code, reported["param"]) == ("400", "id")
        assert "`org/m`" in reported["message"]
        assert (await refused(delete("none")))[0] == "404"
        assert await delete("org/m") == {"id": "org/m", "object": "model", "deleted": True}
        assert (await refused(delete("org/m")))[0] == "404"
