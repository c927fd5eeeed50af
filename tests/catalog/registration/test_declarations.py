"""The models file: the catalog applies it despite bad files, hub failures and restarts."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.models.v1 import model_pb2, model_service_pb2
from allm.openai.v1 import models_service_pb2

from services.auth.authentication import Authenticator
from services.catalog import metrics
from services.catalog.registration import declarations
from services.rpc.call import Call
from tests import identities
from tests.catalog.catalog_service import PATIENCE, Service, ids, refusal, running
from tests.catalog.model_files import gguf, safetensors
from tests.loopback_hub import LoopbackHub

Code = grpc.StatusCode


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(declarations, "FIRST_PAUSE", 0.02)


class Declared:
    """A models file, and the local files that its entries name."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.files = home / "files"
        self.path = home / "models.json"
        self.environ = {"ALLM_MODELS_FILE": str(self.path)}

    def entry(self, model_id: str, **more: Any) -> dict[str, Any]:
        """Returns an entry for a GGUF file and writes the file if it does not exist."""
        path = self.files / f"{model_id}.gguf"
        if not path.exists():
            gguf(path)
        return {"id": model_id, "source": path.as_uri(), "format": "gguf"} | more

    def write(self, *entries: dict[str, Any]) -> None:
        """Replaces the models file atomically."""
        self.text(json.dumps({"models": entries}, indent=1))

    def text(self, text: str) -> None:
        """Replaces the models file with any text."""
        fresh = self.home / "fresh"
        fresh.write_text(text)
        fresh.replace(self.path)


@pytest.fixture
def declared(tmp_path: Path) -> Declared:
    return Declared(tmp_path)


async def eventually(look: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    """Waits until `look` returns `wanted`."""
    found = None
    try:
        async with asyncio.timeout(PATIENCE):
            while (found := await look()) != wanted:  # noqa: ASYNC110 - all over the wire
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{found!r} is not {wanted!r}") from None


async def names(service: Service) -> list[str]:
    answer = await service.models.ListModels(model_service_pb2.ListModelsRequest())
    return ids(answer.models)


async def status_of_file(service: Service) -> Any:
    body = await service.facade.ListModels(models_service_pb2.ListModelsRequest(state="all"))
    return json.loads(body.data)["models_file"]


def messages(service: Service) -> Callable[[], Awaitable[list[str]]]:
    """Returns a function that reads the problems from the listing of all models."""

    async def look() -> list[str]:
        return [problem["message"] for problem in (await status_of_file(service))["problems"]]

    return look


def model(service: Service, name: str, *fields: str) -> Callable[[], Awaitable[Any]]:
    """Returns a function that reads fields of a model; it returns None if the model does not exist."""

    async def look() -> Any:
        try:
            found = await service.get(name)
        except grpc.aio.AioRpcError as error:
            assert error.code() == Code.NOT_FOUND
            return None
        values = [getattr(found, field) for field in fields]
        return [list(value) if field == "aliases" else value for field, value in zip(fields, values, strict=True)]

    return look


async def test_declared_models_exist_when_the_catalog_starts_to_serve(declared: Declared) -> None:
    declared.write(declared.entry("a", aliases=["x"]), declared.entry("b", keep_loaded=True, runtime="llama_cpp"))
    async with running(declared.home, **declared.environ) as service:
        await service.catalog.declarations.wait_until_attempted(PATIENCE)
        assert await names(service) == ["a", "b"]
        found = await service.get("x")
        assert (found.id, found.format, found.generation) == ("a", model_pb2.FORMAT_GGUF, 1)
        assert (found.keep_loaded, (await service.get("b")).keep_loaded) == (False, True)
        assert await status_of_file(service) == {"path": str(declared.path), "problems": []}


async def test_the_file_is_followed_through_every_change(declared: Declared) -> None:
    declared.write(declared.entry("a", aliases=["x"]))
    async with running(declared.home, **declared.environ) as service:
        await eventually(model(service, "a", "aliases", "generation"), [["x"], 1])
        created = (await service.get("a")).create_time
        other = gguf(declared.files / "other.gguf", context=512)
        declared.write(declared.entry("a", aliases=["y"], source=other.as_uri(), keep_loaded=True), declared.entry("b"))
        await eventually(model(service, "a", "aliases", "generation", "keep_loaded"), [["y"], 2, True])
        await eventually(lambda: names(service), ["a", "b"])
        found = await service.get("a")
        assert (found.source, found.context_tokens) == (other.as_uri(), 512)
        assert found.create_time == created, "it is the same model, updated"
        declared.write(declared.entry("b"))
        await eventually(lambda: names(service), ["b"])
        declared.text('{"models": []}')
        await eventually(lambda: names(service), [])


async def test_a_configmap_is_swapped_by_its_link(declared: Declared) -> None:
    """Kubernetes keeps the path and renames a symbolic link in the middle of it."""
    for version, entries in (("v1", ["a"]), ("v2", ["a", "b"])):
        folder = declared.home / "volume" / f"..{version}"
        folder.mkdir(parents=True)
        models = [declared.entry(name) for name in entries]
        (folder / "models.yaml").write_text(json.dumps({"models": models}))
    data = declared.home / "volume" / "..data"
    data.symlink_to("..v1")
    path = declared.home / "volume" / "models.yaml"
    path.symlink_to("..data/models.yaml")
    async with running(declared.home, ALLM_MODELS_FILE=str(path)) as service:
        await eventually(lambda: names(service), ["a"])
        fresh = data.with_name("..data_tmp")
        fresh.symlink_to("..v2")
        fresh.replace(data)
        await eventually(lambda: names(service), ["a", "b"])


async def test_manual_registrations_are_left_alone(declared: Declared) -> None:
    declared.write(declared.entry("a"))
    async with running(declared.home, **declared.environ) as service:
        await service.register("hand", aliases=["h"])
        await eventually(lambda: names(service), ["a", "hand"])
        declared.text('{"models": []}')
        await eventually(lambda: names(service), ["hand"])
        # A model that the file names belongs to the file.
        declared.write(declared.entry("hand", aliases=["f"]))
        await eventually(model(service, "hand", "aliases", "generation"), [["f"], 1])
        declared.text('{"models": []}')
        await eventually(lambda: names(service), [])


async def test_declared_models_change_only_in_the_file(declared: Declared) -> None:
    declared.write(declared.entry("a", aliases=["x"]))
    async with running(declared.home, **declared.environ) as service:
        await eventually(lambda: names(service), ["a"])
        update = model_service_pb2.UpdateModelRequest(id="x")
        for call in (
            service.models.UpdateModel(update),
            service.models.DeleteModel(model_service_pb2.DeleteModelRequest(id="a")),
        ):
            found = await refusal(call)
            assert (found.code, found.param) == (Code.INVALID_ARGUMENT, "id")
            assert f"'a' is declared in ALLM_MODELS_FILE: change {declared.path} instead" in found.message
        with pytest.raises(grpc.aio.AioRpcError, match="declared in ALLM_MODELS_FILE"):
            await service.facade.DeleteModel(models_service_pb2.DeleteModelRequest(id="a"))
        assert (await service.models.LoadModel(model_service_pb2.LoadModelRequest(id="a"))).model.keep_loaded
        assert not (await service.models.UnloadModel(model_service_pb2.UnloadModelRequest(id="a"))).model.keep_loaded
        assert await names(service) == ["a"]


async def test_load_and_unload_are_an_operators_where_the_file_says_nothing(declared: Declared) -> None:
    declared.write(declared.entry("a"))
    async with running(declared.home, **declared.environ) as service:
        await eventually(lambda: names(service), ["a"])
        await service.report(complete=True)
        load = model_service_pb2.LoadModelRequest(id="a", runtime="llama_cpp")
        await service.models.LoadModel(load)
        declared.write(declared.entry("a", aliases=["x"]))
        await eventually(model(service, "a", "aliases", "keep_loaded"), [["x"], True])
        declared.write(declared.entry("a", aliases=["x"], keep_loaded=True, runtime="llama_cpp"), declared.entry("b"))
        await eventually(lambda: names(service), ["a", "b"])
        declared.write(declared.entry("a"))  # settings that the file drops are reset
        await eventually(model(service, "a", "aliases", "keep_loaded"), [[], False])
        assert next(iter(service.catalog.views.all())).desired.runtime == ""


async def test_runtime_and_engine_are_what_the_file_says(declared: Declared) -> None:
    async def look() -> Any:
        found = {one.id: one.desired for one in service.catalog.views.all()}.get("a")
        return found and (found.generation, found.runtime, found.registered_runtime, found.engine.max_sequences)

    declared.write(declared.entry("a", runtime="llama_cpp", engine={"max_sequences": 2}))
    async with running(declared.home, **declared.environ) as service:
        await eventually(look, (1, "llama_cpp", "llama_cpp", 2))
        declared.write(declared.entry("a", runtime="llama_cpp", engine={"max_sequences": 3}))
        await eventually(look, (2, "llama_cpp", "llama_cpp", 3))
        declared.write(declared.entry("a", engine={"max_sequences": 2000}))
        wrong = "'engine.max_sequences' must be from 1 to 192, or 0 for the service's setting, not 2000"
        await eventually(messages(service), [wrong])
        (problem,) = (await status_of_file(service))["problems"]
        assert (problem["key"], problem["line"] > 0) == ("models[0].engine", True)
        assert (await look())[0] == 2
        declared.write(declared.entry("a"))
        await eventually(look, (3, "", "", 0))


async def test_invalid_entries_are_reported_and_block_no_other(declared: Declared) -> None:
    missing = (declared.files / "missing.gguf").as_uri()
    declared.write(
        declared.entry("a"),
        declared.entry("b", format="onnx"),
        declared.entry("c", source=missing),
        declared.entry("d", aliases=["a"]),
        declared.entry("e", runtime="torsh"),
        declared.entry("f", colour="blue"),
        declared.entry("g"),
    )
    async with running(declared.home, **declared.environ) as service:
        await service.catalog.declarations.wait_until_attempted(PATIENCE)
        assert await names(service) == ["a", "g"]
        found = await status_of_file(service)
        lines = declared.path.read_text().splitlines()
        reported = {problem["model"]: problem for problem in found["problems"]}
        assert reported.keys() == {"b", "c", "d", "e", "f"}
        for model_id, key, words in (
            ("b", "format", "unknown format 'onnx'"),
            ("c", "source", "missing.gguf: there is no such file or folder"),
            ("d", "aliases", "the alias 'a' is already an id in this file"),
            ("e", "runtime", "there is no runtime 'torsh' for text models: it must be one of llama_cpp, torch"),
            ("f", "colour", "unknown key 'colour'"),
        ):
            problem = reported[model_id]
            assert words in problem["message"]
            assert problem["key"] == f"models[{'abcdefg'.index(model_id)}].{key}"
            assert f'"{key}": ' in lines[problem["line"] - 1]
        listed = (await service.models.ListModels(model_service_pb2.ListModelsRequest())).models_file
        typed = [{field.name: value for field, value in problem.ListFields()} for problem in listed.problems]
        assert (listed.path, typed) == (str(declared.path), found["problems"]), "the same as over REST"
        await eventually(_problem_count, 5)
        gguf(declared.files / "missing.gguf")  # the catalog retries failed entries
        await eventually(lambda: names(service), ["a", "c", "g"])
        await eventually(_problem_count, 4)


async def _problem_count() -> float:
    return metrics.MODELS_FILE_PROBLEMS._value.get()


@pytest.mark.parametrize("text", ["", "models:\n", "models: [", '{"model": []}', None])
async def test_a_broken_file_changes_nothing(declared: Declared, text: str | None) -> None:
    declared.write(declared.entry("a"))
    async with running(declared.home, **declared.environ) as service:
        await eventually(lambda: names(service), ["a"])
        if text is None:
            declared.path.unlink()
        else:
            declared.text(text)
        await eventually(_has_problem(service), True)
        assert await names(service) == ["a"]
        declared.write(declared.entry("a"), declared.entry("b"))
        await eventually(lambda: names(service), ["a", "b"])
        assert (await status_of_file(service))["problems"] == []


def _has_problem(service: Service) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return any(problem["model"] == "" for problem in (await status_of_file(service))["problems"])

    return look


async def test_a_declared_model_stays_while_its_entry_is_invalid(declared: Declared) -> None:
    declared.write(declared.entry("a"), declared.entry("b"), declared.entry("c"))
    async with running(declared.home, **declared.environ) as service:
        await eventually(lambda: names(service), ["a", "b", "c"])
        nameless = declared.entry("b")
        nameless["idd"] = nameless.pop("id")
        declared.write(declared.entry("a", format="safetensors"), nameless, declared.entry("d"))
        await eventually(lambda: names(service), ["a", "b", "c", "d"])
        assert any("the format of a model cannot change" in reported for reported in await messages(service)())
        declared.write(declared.entry("a"), declared.entry("b"), declared.entry("d"))
        await eventually(lambda: names(service), ["a", "b", "d"])


async def test_aliases_move_and_change_places(declared: Declared) -> None:
    declared.write(declared.entry("a", aliases=["x"]), declared.entry("b", aliases=["y"]))
    async with running(declared.home, **declared.environ) as service:
        await eventually(model(service, "b", "aliases"), [["y"]])
        declared.write(declared.entry("a", aliases=["y"]), declared.entry("b", aliases=["x"]))
        await eventually(model(service, "x", "id"), ["b"])
        await eventually(model(service, "y", "id"), ["a"])
        declared.write(declared.entry("c", aliases=["x", "y", "a"]))
        await eventually(model(service, "a", "id", "aliases"), ["c", ["x", "y", "a"]])


async def test_the_hub_is_asked_until_it_answers_and_a_revision_is_a_new_generation(
    hub: LoopbackHub, declared: Declared
) -> None:
    first = hub.add("org/m", safetensors(declared.home / "first"))
    second = hub.add("org/m", safetensors(declared.home / "second", "qwen3"), "next")
    hub.status("", 503, times=3)

    def entry(revision: str, **more: Any) -> dict[str, Any]:
        return {"id": "m", "source": "hf://org/m", "revision": revision, "format": "safetensors"} | more

    declared.write(entry("main"), declared.entry("a"))
    async with running(declared.home, **declared.environ) as service:
        await eventually(lambda: names(service), ["a", "m"])
        assert (await service.get("m")).revision == first
        asked = len(hub.requests)
        declared.write(entry("main", aliases=["x"]), declared.entry("a"))
        await eventually(model(service, "m", "aliases", "generation"), [["x"], 1])
        assert len(hub.requests) == asked, "an alias is no reason to ask the hub"
        hub.status("", 503, times=3)
        declared.write(entry("next", aliases=["x"]), declared.entry("a"))
        await eventually(model(service, "m", "revision", "generation", "architecture"), [second, 2, "qwen3"])
        assert (await service.get("m")).source == "hf://org/m@next"


async def test_a_hung_hub_delays_neither_others_nor_the_next_file(hub: LoopbackHub, declared: Declared) -> None:
    hub.add("org/m", safetensors(declared.home / "m"))
    gate = hub.gate("config.json")
    declared.write({"id": "m", "source": "hf://org/m", "format": "safetensors"}, declared.entry("a"))
    async with running(declared.home, **declared.environ) as service:
        await eventually(lambda: names(service), ["a"])
        await asyncio.to_thread(gate.wait_reached)
        declared.write(declared.entry("b"))
        await eventually(lambda: names(service), ["b"])
        gate.open()
    async with running(declared.home, **declared.environ) as service:
        await service.catalog.declarations.wait_until_attempted(PATIENCE)
        assert await names(service) == ["b"], "what was given up has not come after all"


async def test_a_restart_changes_nothing_but_what_has_changed_meanwhile(declared: Declared) -> None:
    declared.write(declared.entry("a", keep_loaded=True), declared.entry("b"), declared.entry("c"))
    async with running(declared.home, **declared.environ) as service:
        await eventually(lambda: names(service), ["a", "b", "c"])
        await service.models.UnloadModel(model_service_pb2.UnloadModelRequest(id="a"))
    gguf(declared.files / "b.gguf", context=512)
    declared.write(declared.entry("a", keep_loaded=True), declared.entry("b"))
    async with running(declared.home, **declared.environ) as service:
        await service.catalog.declarations.wait_until_attempted(PATIENCE)
        assert await names(service) == ["a", "b"]
        assert await model(service, "a", "generation", "keep_loaded")() == [1, False], "an operator had unloaded it"
        assert await model(service, "b", "generation", "context_tokens")() == [2, 512], "its file is another"


async def test_without_the_setting_declared_models_belong_to_the_operator(declared: Declared) -> None:
    declared.write(declared.entry("a"), declared.entry("b"))
    async with running(declared.home, **declared.environ) as service:
        await eventually(lambda: names(service), ["a", "b"])
    async with running(declared.home) as service:
        await service.catalog.declarations.wait_until_attempted(PATIENCE)
        await service.models.UpdateModel(model_service_pb2.UpdateModelRequest(id="a"))
        await service.models.DeleteModel(model_service_pb2.DeleteModelRequest(id="b"))
        body = await service.facade.ListModels(models_service_pb2.ListModelsRequest(state="all"))
        assert "models_file" not in json.loads(body.data)
        typed = await service.models.ListModels(model_service_pb2.ListModelsRequest())
        assert not typed.HasField("models_file")
        assert [one["declared"] for one in json.loads(body.data)["data"]] == [False]
    declared.text('{"models": []}')
    async with running(declared.home, **declared.environ) as service:
        await service.catalog.declarations.wait_until_attempted(PATIENCE)
        assert await names(service) == ["a"], "the file has let go of it"


async def test_a_half_written_file_is_not_applied(declared: Declared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change counts when two consecutive reads return the same content."""
    declared.write(declared.entry("a"), declared.entry("b"))
    half = json.dumps({"models": [declared.entry("a")]}).encode()
    async with running(declared.home, **declared.environ) as service:
        await eventually(lambda: names(service), ["a", "b"])
        real, reads = declarations.read_file, []

        def read(path: Path) -> bytes:
            reads.append(path)
            return half if len(reads) % 2 else real(path)

        monkeypatch.setattr(declarations, "read_file", read)

        async def seen() -> bool:
            return len(reads) >= 10

        await eventually(seen, True)
        assert await names(service) == ["a", "b"]
        monkeypatch.setattr(declarations, "read_file", lambda path: half)
        await eventually(lambda: names(service), ["a"])


async def test_problems_are_for_those_who_may_register(declared: Declared, monkeypatch: pytest.MonkeyPatch) -> None:
    declared.text("models: [")

    async def shown_to(service: Service, scope: str) -> Any:
        metadata = identities.shown(identities.identity("key_1", "inference", scope))
        asked = models_service_pb2.ListModelsRequest(state="all")
        shown = json.loads((await service.facade.ListModels(asked, metadata=metadata)).data).get("models_file")
        typed = await service.models.ListModels(model_service_pb2.ListModelsRequest(), metadata=metadata)
        assert typed.HasField("models_file") == (shown is not None)
        return shown

    async with running(declared.home, **declared.environ) as service:
        await eventually(_has_problem(service), True)
        monkeypatch.setattr(Call, "authenticator", Authenticator(identities.PUBLIC))
        (reported,) = (await shown_to(service, "admin"))["problems"]
        assert (reported["line"], reported["key"], reported["model"]) == (1, "", "")
        assert reported["message"].startswith("it cannot be read as YAML: ")
        assert await shown_to(service, "inference") is None


async def test_a_disk_error_ends_no_process(declared: Declared, monkeypatch: pytest.MonkeyPatch) -> None:
    declared.write(declared.entry("a"))
    async with running(declared.home, **declared.environ) as service:
        await eventually(lambda: names(service), ["a"])
        registrations = service.catalog.declarations._registrations
        real = registrations.remove

        tries = []

        async def broken(found: Any) -> None:
            tries.append(found.id)
            raise OSError(os.strerror(28))

        async def tried() -> bool:
            return tries[:2] == ["a", "a"]

        monkeypatch.setattr(registrations, "remove", broken)
        declared.write(declared.entry("b"))
        await eventually(tried, True)
        assert await names(service) == ["a"]
        monkeypatch.setattr(registrations, "remove", real)
        await eventually(lambda: names(service), ["b"])
