"""Runtime and engine of a model, set by registration, update and LoadModel: the latest request wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.models.v1 import model_pb2, model_service_pb2

from services.catalog.registration.validation import MAX_ALIASES, check_aliases, check_id
from services.errors import InvalidRequest
from services.models.runtimes import RUNTIMES, VLLM_MISSING
from tests.case import case
from tests.catalog.catalog_service import PENDING, UNSUPPORTED, Service, llama_cpp, refusal, running, torch
from tests.catalog.model_files import safetensors


def test_allowed() -> None:
    for name in ["a", "7", "gpt-4o", "org/name", "a.b_c-d:e/f@g+h", "x" * 128, "m:updated", "a..b"]:
        with case(name=name):
            check_id(name)
            check_aliases([name], "other")


WRONG = ["", "/a", "-a", ".a", "a b", "ä", "a\n", "a\x00", "x" * 129, "a//b", "a/../b", "a/..", "a/./b", "a/", "a?b"]
WRONG += ["a%2fb", "m:update", "m:load", "org/m:unload", "a\\b", "a#b"]


def test_refused() -> None:
    for name in WRONG:
        with case(name=name):
            with pytest.raises(InvalidRequest) as caught:
                check_id(name)
            assert caught.value.param == "id"
            with pytest.raises(InvalidRequest) as caught:
                check_aliases(["good", name], "other")
            assert caught.value.param == "aliases"


def test_aliases_are_few_and_each_is_there_once() -> None:
    check_aliases([f"a{number}" for number in range(MAX_ALIASES)], "m")
    with pytest.raises(InvalidRequest, match="at most 32 aliases may be given, not 33"):
        check_aliases([f"a{number}" for number in range(MAX_ALIASES + 1)], "m")
    with pytest.raises(InvalidRequest, match="'a' appears twice"):
        check_aliases(["a", "b", "a"], "m")
    with pytest.raises(InvalidRequest, match="'m' is the model's id"):
        check_aliases(["m"], "m")


INVALID = grpc.StatusCode.INVALID_ARGUMENT
Engine = model_pb2.EngineSettings


def vllm(**more: Any) -> model_service_pb2.RuntimeOffer:
    """Returns the vllm offer of a text service."""
    return torch(**({"name": "vllm", "pipelines": True} | more))


async def add(service: Service, model_id: str = "m", **more: Any) -> model_pb2.Model:
    """Registers a safetensors folder."""
    if not (service.files / model_id).exists():
        safetensors(service.files / model_id)
    return await service.register(model_id, model_id, format="safetensors", **more)


async def update(service: Service, model_id: str = "m", **more: Any) -> model_pb2.Model:
    answer = await service.models.UpdateModel(model_service_pb2.UpdateModelRequest(id=model_id, **more))
    return answer.model


async def load(service: Service, runtime: str = "") -> model_pb2.Model:
    answer = await service.models.LoadModel(model_service_pb2.LoadModelRequest(id="m", runtime=runtime))
    return answer.model


async def test_they_are_kept_shown_and_sent_to_the_services(tmp_path: Path) -> None:
    engine = Engine(tensor_parallel=2, pipeline_parallel=2, context_tokens=4096, kv_tokens=2**26, dtype="bfloat16")
    async with running(tmp_path) as service:
        model = await add(service, runtime="vllm", engine=engine)
        assert (model.asked_runtime, model.engine, model.generation) == ("vllm", engine, 1)
        assert not (await add(service, "other")).HasField("engine")
    async with running(tmp_path) as service:
        watch = service.watch()
        sent = {}
        async for event in watch:
            if event.HasField("synced"):
                break
            sent[event.changed.model.id] = event.changed
        watch.cancel()
        assert (sent["m"].runtime, sent["m"].model.engine) == ("vllm", engine)
        assert (sent["other"].runtime, sent["other"].model.HasField("engine")) == ("", False)


async def test_ambiguous_values_are_refused_by_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    for request_, param, words in [
        (
            {"runtime": "vlm"},
            "runtime",
            "there is no runtime 'vlm' for text models: it must be one of llama_cpp, torch",
        ),
        ({"runtime": "whisper"}, "runtime", "there is no runtime 'whisper' for text models"),
        ({"engine": Engine(tensor_parallel=-1)}, "engine.tensor_parallel", "must be from 1 to 64, or 0 for"),
        ({"engine": Engine(pipeline_parallel=65)}, "engine.pipeline_parallel", "must be from 1 to 64"),
        ({"engine": Engine(context_tokens=8)}, "engine.context_tokens", "must be from 16 to 10000000"),
        ({"engine": Engine(max_sequences=193)}, "engine.max_sequences", "must be from 1 to 192"),
        ({"engine": Engine(kv_tokens=2**40)}, "engine.kv_tokens", "must be from 16 to 100000000"),
        (
            {"engine": Engine(dtype="int4")},
            "engine.dtype",
            "must be one of auto, bfloat16, float16, float32, not 'int4'",
        ),
        ({"engine": Engine(speculation="eagle")}, "engine.speculation", "must be one of off, ngram, not 'eagle'"),
        (
            {"engine": Engine(pipeline_parallel=2), "runtime": "torch"},
            "engine.pipeline_parallel",
            "is 2, and the runtime torch does not divide models into stages: vllm does",
        ),
    ]:
        with case(request_=request_, param=param, words=words):
            tmp_path = tmp_path_factory.mktemp("case")
            async with running(tmp_path) as service:
                error = await refusal(add(service, **request_))
                assert (error.code, error.param) == (INVALID, param)
                assert words in error.message
                await add(service)
                error = await refusal(update(service, **request_))
                assert (error.code, error.param) == (INVALID, param)
                model = await service.get("m")
                assert (model.generation, model.asked_runtime, model.HasField("engine")) == (1, "", False)


@pytest.mark.parametrize(
    ("engine", "param", "words"),
    [
        (Engine(dtype="float16"), "engine.dtype", "'engine.dtype' is for safetensors, not for gguf"),
        (Engine(tensor_parallel=2), "engine.tensor_parallel", "is for safetensors, not for gguf"),
        (Engine(pipeline_parallel=2), "engine.pipeline_parallel", "the runtimes for gguf do not divide models"),
    ],
)
async def test_unsupported_keywords_for_gguf_are_refused(
    tmp_path: Path, engine: Engine, param: str, words: str
) -> None:
    async with running(tmp_path) as service:
        error = await refusal(service.register("m", engine=engine))
        assert (error.code, error.param) == (INVALID, param)
        assert words in error.message
        model = await service.register("m", engine=Engine(context_tokens=512, tensor_parallel=1))
        assert model.engine.context_tokens == 512


async def test_audio_and_image_models_have_no_engine_settings(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        for format_ in ("whisper", "diffusers"):
            error = await refusal(service.register("m", format=format_, engine=Engine(max_sequences=1)))
            assert (error.code, error.param) == (INVALID, "engine")
            assert "'engine' is for text models, not for " in error.message
        error = await refusal(service.register("m", format="whisper", runtime="torch"))
        assert (
            "there is no runtime 'torch' for audio models: it must be one of whisper, faster_whisper" in error.message
        )


async def test_another_way_of_being_run_is_another_generation(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        first = await add(service, aliases=["a"])
        changes: list[tuple[dict[str, Any], int]] = [
            ({"runtime": "vllm"}, 2),
            ({"runtime": "vllm"}, 2),  # no change
            ({"engine": Engine(max_sequences=4, dtype="float32")}, 3),
            ({"aliases": model_service_pb2.AliasList(names=["b"])}, 3),
            ({"engine": Engine(max_sequences=4)}, 4),  # replaces all engine settings
            ({"runtime": "", "engine": Engine()}, 5),
            ({}, 5),
        ]
        for change, generation in changes:
            model = await update(service, **change)
            assert model.generation == generation, change
        assert (model.asked_runtime, model.HasField("engine")) == ("", False)
        assert (model.source, model.create_time, list(model.aliases)) == (first.source, first.create_time, ["b"])


async def test_files_are_not_looked_at_where_only_the_way_changes(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await add(service)
        (service.files / "m" / "config.json").unlink()
        assert (await update(service, runtime="torch", engine=Engine(max_sequences=2))).generation == 2
        assert "config.json" in (await refusal(update(service))).message


async def test_last_requested_runtime_counts(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.report(complete=True, runtimes=[torch(), vllm(), llama_cpp()])
        await add(service, runtime="vllm")
        assert (await load(service)).asked_runtime == "vllm", "nobody asked for another"
        assert (await load(service, "torch")).asked_runtime == "torch"
        assert (await update(service, aliases=model_service_pb2.AliasList(names=["a"]))).asked_runtime == "torch"
        assert (await load(service)).asked_runtime == "vllm", "as it is registered"
        await load(service, "torch")
        assert (await update(service, runtime="vllm")).asked_runtime == "vllm"
        assert (await update(service, runtime="")).asked_runtime == ""
        assert (await load(service)).asked_runtime == ""


async def test_a_runtime_of_a_replica_alone_does_not_stand_in_the_way_of_settings(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.report(complete=True, runtimes=[torch(name="torch_next")])
        await add(service)
        await load(service, "torch_next")
        model = await update(service, engine=Engine(max_sequences=2))
        assert (model.asked_runtime, model.engine.max_sequences) == ("torch_next", 2)


async def test_stages_keep_other_runtimes_away(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.report(complete=True, runtimes=[torch(), vllm()])
        model = await add(service, engine=Engine(pipeline_parallel=2))
        assert model.state == PENDING
        request = model_service_pb2.ExplainModelRequest(id="m")
        (replica,) = (await service.models.ExplainModel(request)).resolutions
        assert [(one.runtime, one.chosen) for one in replica.runtimes] == [("vllm", True), ("torch", False)]
        error = await refusal(load(service, "torch"))
        assert (error.code, "does not divide models into stages" in error.message) == (INVALID, True)
        assert not (await service.get("m")).keep_loaded
        await service.report(complete=True, runtimes=[torch()])
        model = await service.get("m")
        assert (model.state, "torch cannot divide it into stages" in model.reason) == (UNSUPPORTED, True)


async def test_a_runtime_that_is_not_installed_says_how_to_install_it(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.report(complete=True, runtimes=[torch(), vllm(missing=VLLM_MISSING)])
        model = await add(service, runtime="vllm")
        assert model.state == UNSUPPORTED
        assert model.reason == f"m: the requested runtime 'vllm' cannot run it here: {VLLM_MISSING}"
        request = model_service_pb2.ExplainModelRequest(id="m")
        (replica,) = (await service.models.ExplainModel(request)).resolutions
        reasons = {one.runtime: one.reason for one in replica.runtimes}
        assert reasons["vllm"] == VLLM_MISSING
        error = await refusal(load(service, "vllm"))
        assert (error.code, error.param) == (INVALID, "runtime")
        assert VLLM_MISSING in error.message
        assert (await update(service, runtime="")).state == PENDING, "torch runs it"
        await service.report("text-2", complete=True, runtimes=[vllm()])
        assert (await load(service, "vllm")).state == PENDING, "one replica that has it is enough"


async def test_every_runtime_of_the_table_can_be_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        error = await refusal(add(service, runtime="?"))
        names = [runtime.name for runtime in RUNTIMES if runtime.modality == "text"]
        assert error.message.endswith(f"it must be one of {', '.join(names)}")
