"""The typed API of the catalog: states, replicas, watches, loading, measurements, explanations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.models.v1 import model_pb2, model_service_pb2
from google.protobuf import timestamp_pb2
from prometheus_client import REGISTRY

from tests.case import case
from tests.catalog.catalog_service import (
    AUDIO,
    DOWNLOADING,
    FAILED,
    LOADED,
    PENDING,
    READY,
    TEXT,
    UNSUPPORTED,
    Service,
    event,
    ids,
    llama_cpp,
    refusal,
    running,
    snapshot,
    status,
    torch,
)
from tests.catalog.model_files import gguf

Code = grpc.StatusCode
BENCHMARK: dict[str, Any] = {
    "runtime": "llama_cpp",
    "device": "cpu",
    "tokens_per_second": 20.0,
    "first_token_seconds": 0.5,
    "peak_memory_bytes": 1000,
}


def load(service: Service, model_id: str, runtime: str = ""):
    return service.models.LoadModel(model_service_pb2.LoadModelRequest(id=model_id, runtime=runtime))


def record(service: Service, model_id: str, **changes: Any):
    benchmark = model_pb2.Benchmark(**(BENCHMARK | changes))
    return service.models.RecordBenchmark(model_service_pb2.RecordBenchmarkRequest(id=model_id, benchmark=benchmark))


async def explained(service: Service, model_id: str):
    answer = await service.models.ExplainModel(model_service_pb2.ExplainModelRequest(id=model_id))
    return answer.resolutions


# --- states


async def test_a_model_is_what_its_best_replica_says(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        model = await service.register("m")
        assert (model.state, model.reason) == (UNSUPPORTED, "no text service is running")
        await service.report("text-1", complete=True)
        model = await service.get("m")
        assert (model.state, model.reason) == (PENDING, "text-1 has not started on it yet")
        assert list(model.replicas) == [], "it has not said anything of it"
        await service.report("text-2", complete=True, statuses=[status("m", FAILED, reason="a file is missing")])
        assert (await service.get("m")).state == PENDING, "the other one may still do it"
        await service.report("text-1", statuses=[status("m", FAILED, reason="the disk is full")])
        model = await service.get("m")
        assert (model.state, model.reason) == (FAILED, "the disk is full")
        await service.report("text-2", statuses=[status("m", DOWNLOADING, done_bytes=3, total_bytes=9)])
        await service.report("text-1", statuses=[status("m", READY, runtime="llama_cpp")])
        model = await service.get("m")
        assert (model.state, model.reason, model.runtime) == (READY, "", "llama_cpp")
        assert [(one.replica, one.state, one.done_bytes) for one in model.replicas] == [
            ("text-1", READY, 0),
            ("text-2", DOWNLOADING, 3),
        ]
        await service.report("text-2", statuses=[status("m", LOADED)])
        assert (await service.get("m")).state == LOADED


async def test_a_replica_falls_silent_and_no_longer_counts(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("m")
        for name in ("text-1", "text-2"):
            await service.report(name, complete=True, statuses=[status("m")])
        watch = service.watch()
        (model,) = await snapshot(watch)
        assert list(model.ready_replicas) == ["text-1", "text-2"]
        service.clock.now = 5.0
        await service.report("text-2")
        service.clock.now = 7.0
        assert list((await event(watch)).changed.ready_replicas) == ["text-2"], "and watchers are told"
        assert (await service.get("m")).state == READY
        await service.report("text-2", leaving=True)
        assert list((await event(watch)).changed.ready_replicas) == []
        assert (await service.get("m")).reason == "no text service is running"


async def test_an_architecture_that_no_runtime_knows_is_unsupported(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        gguf(service.files / "m.gguf", architecture="strange")
        await service.report(complete=True)
        model = await service.register("m")
        assert model.state == UNSUPPORTED
        assert "'strange' is not supported by llama_cpp" in model.reason
        await service.report("text-2", complete=True, runtimes=[llama_cpp(architectures=["strange"])])
        assert (await service.get("m")).state == PENDING, "another service can"


async def test_replicas_of_another_modality_do_not_count(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("m")
        await service.report("audio-1", complete=True, modality=AUDIO, statuses=[status("m")])
        assert (await service.get("m")).reason == "no text service is running"


async def test_a_restarted_catalog_asks_for_everything(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        before = await service.register("m", aliases=["a"])
        assert await service.report(), "it knows nothing of this replica"
        assert not await service.report(complete=True, statuses=[status("m")])
        assert not await service.report()
    async with running(tmp_path) as service:
        assert await service.get("a") == before
        assert await service.report(statuses=[status("m")])
        assert (await service.get("m")).state == UNSUPPORTED
        assert not await service.report(complete=True, statuses=[status("m")])
        assert (await service.get("m")).state == READY


async def test_a_later_model_of_the_same_id_inherits_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("m")
        await service.report(complete=True, statuses=[status("m")])
        await service.models.DeleteModel(model_service_pb2.DeleteModelRequest(id="m"))
        await service.report(statuses=[status("m")])  # the replica does not know of the deletion yet
        model = await service.register("m")
        assert (model.state, list(model.replicas)) == (PENDING, [])


async def test_everything_a_replica_says_comes_through(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("m")
        said = model_pb2.ReplicaStatus(
            replica="ignored",
            state=LOADED,
            generation=1,
            runtime="llama_cpp",
            device="cuda",
            artifact="nvidia/m@1",
            done_bytes=5,
            total_bytes=10,
            peak_memory_bytes=77,
            next=model_pb2.NextGeneration(generation=2, state=FAILED, reason="no room"),
            memory=model_pb2.MemoryStatus(
                loading=True,
                pinned=True,
                reserved_bytes=3,
                host_bytes=2,
                requests=1,
                last_use_time=timestamp_pb2.Timestamp(seconds=1_700_000_000),
                expire_time=timestamp_pb2.Timestamp(seconds=1_700_000_300),
            ),
            canonical=model_pb2.CanonicalFiles(state=FAILED, reason="gone", done_bytes=1, total_bytes=2),
        )
        await service.report(complete=True, statuses=[model_service_pb2.ModelStatus(id="m", status=said)])
        (found,) = (await service.get("m")).replicas
        said.replica = "text-1"
        assert found == said
        said.reason, said.state, said.next.reason = "x" * 5000, FAILED, "y" * 5000
        said.canonical.reason = "z" * 5000
        await service.report(statuses=[model_service_pb2.ModelStatus(id="m", status=said)])
        (found,) = (await service.get("m")).replicas
        assert (len(found.reason), len(found.next.reason), len(found.canonical.reason)) == (1000, 1000, 1000)


async def test_reports_that_cannot_be(tmp_path_factory: pytest.TempPathFactory) -> None:
    for report, param in [
        ({"replica": ""}, "replica"),
        ({"replica": "x" * 129}, "replica"),
        ({"replica": "a\nb"}, "replica"),
        ({"modality": 0}, "modality"),
        ({"modality": 9}, "modality"),
        ({"complete": True, "device": "tpu"}, "device"),
        ({"complete": True, "runtimes": [llama_cpp(), llama_cpp()]}, "runtimes"),
        ({"complete": True, "runtimes": [llama_cpp(), llama_cpp(capabilities=["embed"], devices=["mps"])]}, "runtimes"),
        ({"complete": True, "runtimes": [llama_cpp(name="")]}, "runtimes"),
        ({"complete": True, "runtimes": [llama_cpp(architectures=["x"] * 1001)]}, "runtimes.architectures"),
        ({"statuses": [status("m", 0)]}, "statuses"),
        ({"statuses": [status("m", 99)]}, "statuses"),
        ({"statuses": [status("m")] * 10_001}, "statuses"),
    ]:
        with case(report=report, param=param):
            tmp_path = tmp_path_factory.mktemp("case")
            async with running(tmp_path) as service:
                error = await refusal(service.report(**({"replica": "text-1"} | report)))
                assert (error.code, error.param) == (Code.INVALID_ARGUMENT, param)


async def test_a_runtime_may_be_offered_in_parts(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        gguf(service.files / "m.gguf", architecture="strange")
        embeds = llama_cpp(capabilities=["embeddings"], architectures=["strange"])
        await service.report(complete=True, runtimes=[embeds])
        assert "does not offer chat" in (await service.register("m")).reason
        await service.report(complete=True, runtimes=[embeds, llama_cpp()])
        assert "'strange' is not supported by llama_cpp for chat" in (await service.get("m")).reason
        await service.report(complete=True, runtimes=[embeds, llama_cpp(architectures=["strange"])])
        assert (await service.get("m")).state == PENDING


async def test_deadline_of_the_next_report(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        request = model_service_pb2.ReportModelStatusRequest(replica="r", modality=TEXT)
        answer = await service.models.ReportModelStatus(request)
        assert answer.report_within.ToSeconds() == 2


# --- the list, and missing models


async def test_the_list_is_by_id_and_kept_in_step(tmp_path: Path) -> None:
    async with running(tmp_path) as service:

        async def listed() -> list[Any]:
            answer = await service.models.ListModels(model_service_pb2.ListModelsRequest())
            return list(answer.models)

        assert await listed() == []
        for name in ("b", "c", "a"):
            await service.register(name)
        assert ids(await listed()) == ["a", "b", "c"]
        assert REGISTRY.get_sample_value("allm_models_registered") == 3
        await service.report(complete=True, statuses=[status("b")])
        assert [one.state for one in await listed()] == [PENDING, READY, PENDING]
        await service.models.DeleteModel(model_service_pb2.DeleteModelRequest(id="b"))
        assert await listed() == [await service.get("a"), await service.get("c")]


async def test_a_name_that_is_missing_or_unknown(tmp_path_factory: pytest.TempPathFactory) -> None:
    for rpc in [
        "GetModel",
        "UpdateModel",
        "DeleteModel",
        "LoadModel",
        "UnloadModel",
        "ExplainModel",
        "RecordBenchmark",
    ]:
        with case(rpc=rpc):
            tmp_path = tmp_path_factory.mktemp("case")
            async with running(tmp_path) as service:
                request = getattr(model_service_pb2, f"{rpc}Request")
                error = await refusal(getattr(service.models, rpc)(request()))
                assert (error.code, error.param) == (Code.INVALID_ARGUMENT, "id")
                error = await refusal(getattr(service.models, rpc)(request(id="org/none")))
                assert (error.code, error.reason) == (Code.NOT_FOUND, "MODEL_NOT_FOUND")
                assert "`org/none`" in error.message


async def test_delete_takes_an_alias_too_and_leaves_local_files(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("m", aliases=["a"])
        watch = service.watch()
        await snapshot(watch)
        await service.models.DeleteModel(model_service_pb2.DeleteModelRequest(id="a"))
        assert (await event(watch)).removed_id == "m"
        assert (await refusal(service.get("m"))).code == Code.NOT_FOUND
        assert (service.files / "m.gguf").exists()


# --- watches


async def test_a_watch_over_the_wire(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("m", aliases=["a"])
        await service.report(complete=True, statuses=[status("m", DOWNLOADING)])
        plain, full = service.watch(modality=TEXT), service.watch(modality=TEXT, statuses=True)
        audio = service.watch(modality=AUDIO)
        ((first,), (second,)) = (await snapshot(plain), await snapshot(full))
        assert await snapshot(audio) == []
        assert first.manifest.primary == "m.gguf"
        assert (list(first.model.replicas), len(second.model.replicas)) == ([], 1)
        assert list(first.ready_replicas) == []
        await service.report(statuses=[status("m", DOWNLOADING, done_bytes=1, total_bytes=2)])
        assert (await event(full)).changed.model.replicas[0].done_bytes == 1
        await load(service, "m", "llama_cpp")
        for watch in (plain, full):
            changed = (await event(watch)).changed
            assert (changed.model.keep_loaded, changed.runtime) == (True, "llama_cpp")
        await service.models.UnloadModel(model_service_pb2.UnloadModelRequest(id="a"))
        changed = (await event(plain)).changed
        assert (changed.model.keep_loaded, changed.unloads) == (False, 1)


async def test_a_watch_of_an_unknown_modality_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.watch(modality=42).read()
        assert caught.value.code() == Code.INVALID_ARGUMENT


# --- load, unload


async def test_load_and_unload_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("m")
        await service.report(complete=True)
        assert (await load(service, "m", "llama_cpp")).model.keep_loaded
        for _ in range(2):
            answer = await service.models.UnloadModel(model_service_pb2.UnloadModelRequest(id="m"))
            assert not answer.model.keep_loaded
        assert (await load(service, "m")).model.keep_loaded
    async with running(tmp_path) as service:
        (model,) = await snapshot(service.watch())
        assert (model.model.keep_loaded, model.runtime, model.unloads) == (True, "", 2)


async def test_unavailable_runtime_is_refused_and_available_ones_are_named(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.register("m")
        error = await refusal(load(service, "m", "llama_cpp"))
        assert (error.code, error.param) == (Code.INVALID_ARGUMENT, "runtime")
        assert "no text service is running" in error.message
        await service.report(complete=True, runtimes=[torch(), llama_cpp()])
        error = await refusal(load(service, "m", "vllm"))
        assert "'vllm'; available: llama_cpp, torch" in error.message
        assert not (await service.get("m")).keep_loaded


# --- measurements and explanations


async def test_a_measurement_is_kept_and_decides(tmp_path: Path) -> None:
    other = llama_cpp(name="other")
    async with running(tmp_path) as service:
        await service.register("m")
        await service.report("text-2", complete=True, runtimes=[llama_cpp(), other])
        await service.report("text-1", complete=True, device="cuda", runtimes=[llama_cpp(), other])
        cuda, cpu = await explained(service, "m")
        assert [(one.replica, one.device) for one in (cuda, cpu)] == [("text-1", "cuda"), ("text-2", "cpu")]
        assert [(one.runtime, one.chosen, one.able) for one in cpu.runtimes] == [
            ("llama_cpp", True, True),
            ("other", False, True),
        ]
        assert all(one.reason for one in cpu.runtimes)
        await record(service, "m", runtime="other", tokens_per_second=10.0)
        await record(service, "m", runtime="other", tokens_per_second=30.0)
        await record(service, "m")
        cuda, cpu = await explained(service, "m")
        assert [one.runtime for one in cpu.runtimes if one.chosen] == ["other"]
        assert [one.runtime for one in cuda.runtimes if one.chosen] == ["llama_cpp"], "that was not measured there"
    async with running(tmp_path) as service:
        found = {one.runtime: one for one in (await service.get("m")).benchmarks}
        assert found["other"].tokens_per_second == 30.0
        assert found["other"].record_time.seconds > 1_700_000_000
        assert (found["llama_cpp"].first_token_seconds, found["llama_cpp"].peak_memory_bytes) == (0.5, 1000)
        assert list(await explained(service, "m")) == [], "nobody is running"


async def test_measurements_that_cannot_be(tmp_path_factory: pytest.TempPathFactory) -> None:
    for wrong in [
        {"runtime": ""},
        {"device": ""},
        {"runtime": "x" * 65},
        {"tokens_per_second": 0.0},
        {"tokens_per_second": -1.0},
        {"tokens_per_second": math.inf},
        {"tokens_per_second": math.nan},
        {"first_token_seconds": 0.0},
        {"first_token_seconds": math.nan},
        {"peak_memory_bytes": -1},
    ]:
        with case(wrong=wrong):
            tmp_path = tmp_path_factory.mktemp("case")
            async with running(tmp_path) as service:
                await service.register("m")
                error = await refusal(record(service, "m", **wrong))
                assert (error.code, error.param) == (Code.INVALID_ARGUMENT, f"benchmark.{next(iter(wrong))}")
                assert list((await service.get("m")).benchmarks) == []
