"""Registration and updates over gRPC with real files."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from pathlib import Path

import grpc
import pytest
from allm.models.v1 import model_pb2, model_service_pb2

from services.catalog.registration import registrations, survey
from tests.case import case
from tests.catalog.catalog_service import TEXT, UNSUPPORTED, Refusal, Service, ids, refusal, running
from tests.catalog.model_files import gguf, safetensors

Code = grpc.StatusCode


def update(service: Service, model_id: str, **more: object):
    return service.models.UpdateModel(model_service_pb2.UpdateModelRequest(id=model_id, **more))


def names(*aliases: str) -> model_service_pb2.AliasList:
    return model_service_pb2.AliasList(names=aliases)


async def manifest(service: Service, model_id: str):
    answer = await service.models.GetModel(model_service_pb2.GetModelRequest(id=model_id))
    return answer.manifest


async def listed(service: Service) -> list[str]:
    answer = await service.models.ListModels(model_service_pb2.ListModelsRequest())
    return ids(answer.models)


async def test_a_gguf_file_with_everything_that_is_known_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        gguf(service.files / "sub" / "x.gguf", context=4096)
        model = await service.register("org/m:q4", "sub/x.gguf", aliases=["b", "a"], modality="text")
        assert (model.id, list(model.aliases)) == ("org/m:q4", ["b", "a"])
        assert (model.modality, model.format) == (TEXT, model_pb2.FORMAT_GGUF)
        assert (model.architecture, list(model.capabilities), model.context_tokens) == ("llama", ["chat"], 4096)
        size = (service.files / "sub" / "x.gguf").stat().st_size
        assert (model.size_bytes, model.generation) == (size, 1)
        assert model.source == f"file://{service.files}/sub/x.gguf"
        assert model.create_time.seconds == model.update_time.seconds > 1_700_000_000
        assert (model.state, model.reason) == (UNSUPPORTED, "no text service is running")
        for name in ("org/m:q4", "a", "b"):
            assert await service.get(name) == model
        files = await manifest(service, "a")
        assert [(file.path, file.size_bytes) for file in files.files] == [("x.gguf", size)]
        assert (files.primary, files.folder, files.repository) == ("x.gguf", str(service.files / "sub"), "")


async def test_a_folder_of_safetensors_next_to_a_lying_metadata_file(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        folder = safetensors(service.files / "m")
        (folder / "metadata.json").write_text(json.dumps({"format": "gguf", "id": "other", "modality": "image"}))
        before = sorted(path.name for path in folder.iterdir())
        model = await service.register("m", "m", format="safetensors")
        assert (model.id, model.format, model.modality) == ("m", model_pb2.FORMAT_SAFETENSORS, TEXT)
        files = await manifest(service, "m")
        paths = [file.path for file in files.files]
        assert paths == ["config.json", "model.safetensors", "tokenizer.json"]
        assert (files.primary, files.folder) == ("", str(folder))
        assert sorted(path.name for path in folder.iterdir()) == before, "nothing is written there"


async def test_invalid_requests(tmp_path_factory: pytest.TempPathFactory) -> None:
    for request_, param, words in [
        ({"id": ""}, "id", "Missing required parameter: 'id'."),
        ({"id": "a b"}, "id", "'a b' is not allowed"),
        ({"aliases": ["ok", "m:load"]}, "aliases", "'m:load' is not allowed"),
        ({"aliases": ["new"]}, "aliases", "the alias 'new' is the model's id"),
        ({"format": ""}, "format", "It is one of gguf, safetensors, whisper, diffusers"),
        ({"format": "onnx"}, "format", "must be one of gguf, safetensors, whisper, diffusers"),
        ({"format": "GGUF"}, "format", "must be one of"),
        ({"modality": "audio"}, "modality", "gguf is for text models, not 'audio'"),
        ({"source": ""}, "source", "Missing required parameter: 'source'."),
        ({"source": "https://x/y"}, "source", "neither hf://"),
        ({"source": "file:///etc/passwd"}, "source", "is not below one of ALLM_MODEL_ROOTS"),
    ]:
        with case(request_=request_, param=param, words=words):
            tmp_path = tmp_path_factory.mktemp("case")
            async with running(tmp_path) as service:
                error = await refusal(service.register(**({"model_id": "new"} | {"file": "x"} | _renamed(request_))))
                assert (error.code, error.reason, error.param) == (Code.INVALID_ARGUMENT, "INVALID_REQUEST", param)
                assert words in error.message
                assert await listed(service) == []


def _renamed(request_: dict[str, object]) -> dict[str, object]:
    return {"model_id" if key == "id" else key: value for key, value in request_.items()}


async def test_invalid_files(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        whole = gguf(service.files / "cut.gguf").read_bytes()
        (service.files / "cut.gguf").write_bytes(whole[:-5])
        (service.files / "empty").mkdir()

        async def reported(file: str, **more: object) -> Refusal:
            source = f"file://{service.files}/{file}"
            found = await refusal(service.register("m", "unused.gguf", **({"source": source} | more)))
            assert (found.code, found.reason) == (Code.FAILED_PRECONDITION, "MODEL_INVALID")
            return found

        assert f"{service.files}/none.gguf: there is no such file" in (await reported("none.gguf")).message
        assert "cut.gguf" in (await reported("cut.gguf")).message
        missing = (await reported("empty", format="safetensors")).message
        assert "config.json" in missing
        assert "tokenizer.json" in missing
        assert await listed(service) == []


async def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        path = gguf(service.files / "m" / "x.gguf")
        try:
            os.rename(path, os.fsencode(path.parent) + b"/\xff.gguf")  # noqa: PTH104 (bytes)
        except OSError:
            pytest.skip("the filesystem takes no such names")
        error = await refusal(service.register("m", "m"))
        assert (error.code, "is not UTF-8: rename it" in error.message) == (Code.FAILED_PRECONDITION, True)
        assert await listed(service) == []


async def test_a_duplicate_is_refused_before_its_files_are_looked_at(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        model = await service.register("m", aliases=["a"])
        for names_ in ({"model_id": "m"}, {"model_id": "a"}, {"model_id": "n", "aliases": ["a"]}):
            error = await refusal(service.register(**names_, source=f"file://{service.files}/none.gguf"))
            assert error.code == Code.ALREADY_EXISTS
            assert model.source in error.message
            assert "gguf" in error.message
        assert await service.get("m") == model


async def test_many_at_once_and_of_each_name_one(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        gguf(service.files / "x.gguf")
        tries = [service.register(f"m{number % 10}", "x.gguf") for number in range(40)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        good = [result for result in results if isinstance(result, model_pb2.Model)]
        bad = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
        assert sorted(ids(good)) == await listed(service) == [f"m{number}" for number in range(10)]
        assert {error.code() for error in bad} == {Code.ALREADY_EXISTS}
        assert len(bad) == 30


async def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as service:
        await service.register("m")
        monkeypatch.setattr(registrations, "MAX_MODELS", 1)
        error = await refusal(service.register("n"))
        assert (error.code, "is the limit" in error.message) == (Code.INVALID_ARGUMENT, True)
        monkeypatch.setattr(survey, "AT_ONCE", 0)
        monkeypatch.setattr(survey, "MAX_WAITING", 0)
        assert (await refusal(service.register("n"))).code == Code.RESOURCE_EXHAUSTED


async def test_another_source_is_another_generation(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        first = await service.register("m", aliases=["a"])
        other = gguf(service.files / "other.gguf", architecture="qwen3", padding=100)
        model = (await update(service, "a", source=f"file://{other}")).model
        assert (model.id, model.generation, list(model.aliases)) == ("m", 2, ["a"])
        assert (model.architecture, model.size_bytes) == ("qwen3", other.stat().st_size)
        assert model.source == f"file://{other}"
        assert model.create_time == first.create_time
        assert (await manifest(service, "m")).primary == "other.gguf"


async def test_the_same_files_are_the_same_generation(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        model = await service.register("m")
        assert (await update(service, "m")).model == model
        assert (await update(service, "m", source=model.source)).model == model
        otherwise = model.source.replace("file://", "file://localhost")
        changed = (await update(service, "m", source=otherwise)).model
        assert (changed.source, changed.generation) == (otherwise, 1)


@pytest.mark.parametrize("same_size", [True, False])
async def test_changed_local_files_are_another_generation(tmp_path: Path, same_size: bool) -> None:
    async with running(tmp_path) as service:
        await service.register("m")
        path = service.files / "m.gguf"
        stat = path.stat()
        gguf(path, context=1024, padding=0 if same_size else 8)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
        model = (await update(service, "m")).model
        assert (model.generation, model.context_tokens) == (2, 1024)
        assert (await update(service, "m")).model.generation == 2


async def test_aliases_alone_leave_the_files_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("m", aliases=["a", "b"])
        (service.files / "m.gguf").unlink()
        model = (await update(service, "m", aliases=names("b", "c"))).model
        assert (list(model.aliases), model.generation) == (["b", "c"], 1)
        assert (await refusal(service.get("a"))).code == Code.NOT_FOUND
        assert (await update(service, "c", aliases=names())).model.aliases == []
        error = await refusal(update(service, "m"))
        assert (error.code, "there is no such file" in error.message) == (Code.FAILED_PRECONDITION, True)
        assert (await service.get("m")).generation == 1


async def test_an_update_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("n", aliases=["taken"])
        model = await service.register("m")
        other = gguf(service.files / "other.gguf")
        safetensors(service.files / "st")
        source = f"file://{other}"
        assert (await refusal(update(service, "none", source=source))).code == Code.NOT_FOUND
        assert (await refusal(update(service, "", source=source))).param == "id"
        error = await refusal(update(service, "m", source=source, aliases=names("taken")))
        assert (error.code, error.param) == (Code.ALREADY_EXISTS, "aliases")
        assert (await refusal(update(service, "m", source=source, aliases=names("m")))).param == "aliases"
        assert (await refusal(update(service, "m", source="file:///etc/passwd"))).param == "source"
        error = await refusal(update(service, "m", source=f"file://{service.files}/st"))
        assert error.code == Code.FAILED_PRECONDITION, "the format is fixed for good"
        assert await service.get("m") == model


async def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        folder = safetensors(service.files / "m")
        (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
        shards = {"weight": "model-00001-of-00002.safetensors", "more": "model-00002-of-00002.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        error = await refusal(service.register("m", "m", format="safetensors"))
        assert "model-00002-of-00002.safetensors" in error.message
        assert await listed(service) == []


async def test_the_format_is_not_changed_by_what_else_lies_there(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        folder = safetensors(service.files / "both")
        gguf(folder / "m.gguf")
        st = await service.register("st", "both", format="safetensors")
        gg = await service.register("gg", "both", format="gguf")
        assert (st.format, gg.format) == (model_pb2.FORMAT_SAFETENSORS, model_pb2.FORMAT_GGUF)
        header = struct.pack("<Q", 2) + b"{}"
        (folder / "second.safetensors").write_bytes(header)
        assert (await update(service, "gg")).model.generation == 1
        assert (await refusal(update(service, "st"))).code == Code.FAILED_PRECONDITION, "ambiguous now"
