"""The models that a caller with a model list sees in both APIs, and the scope that each method needs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.models.v1 import model_pb2
from allm.models.v1 import model_service_pb2 as pb
from allm.openai.v1 import models_service_pb2

from services.auth.authentication import Authenticator
from services.auth.caller import Caller, keep_caller
from services.catalog.api.messages import shown_part
from services.models.desired import ModelPart
from services.models.manifest import Manifest, ManifestFile
from services.rpc.call import Call
from tests.catalog.catalog_service import FAILED, READY, TEXT, Service, running, status
from tests.identities import PUBLIC, ann, identity, operator, own_process


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """Yields a catalog with three ready models: `small` (alias `gpt-4o`), `large-a` and `large-b`."""
    async with running(tmp_path) as service:
        await service.register("small", aliases=["gpt-4o"])
        await service.register("large-a")
        await service.register("large-b")
        statuses = [status(model, READY) for model in ("small", "large-a", "large-b")]
        await service.report(complete=True, statuses=statuses)
        monkeypatch.setattr(Call, "authenticator", Authenticator(PUBLIC))
        yield service


async def listed(service: Service, metadata: Any, state: str = "") -> list[str]:
    answer = await service.facade.ListModels(models_service_pb2.ListModelsRequest(state=state), metadata=metadata)
    return [each["id"] for each in json.loads(answer.data)["data"]]


async def listed_typed(service: Service, metadata: Any) -> list[str]:
    return [model.id for model in (await service.models.ListModels(pb.ListModelsRequest(), metadata=metadata)).models]


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize(
    ("models", "names", "ids"),
    [
        ((), {"small", "gpt-4o", "large-a", "large-b"}, ["large-a", "large-b", "small"]),
        (("small",), {"small", "gpt-4o"}, ["small"]),
        (("gpt-4o",), {"small", "gpt-4o"}, ["small"]),
        (("large-*",), {"large-a", "large-b"}, ["large-a", "large-b"]),
        (("large-b", "gone"), {"large-b"}, ["large-b"]),
        (("gone",), set(), []),
    ],
)
async def test_lists_show_what_the_caller_may_use(
    service: Service, models: tuple[str, ...], names: set[str], ids: list[str]
) -> None:
    caller = ann(models=models)
    assert await listed_typed(service, caller) == ids
    assert set(await listed(service, caller)) == names
    assert await listed(service, caller, state="all") == ids
    assert set(await listed(service, ann())) == {"small", "gpt-4o", "large-a", "large-b"}, "others see their own"


async def test_single_models(service: Service) -> None:
    caller = ann(models=("gpt-4o",))
    for name in ("small", "gpt-4o"):
        get = pb.GetModelRequest(id=name)
        assert (await service.models.GetModel(get, metadata=caller)).model.id == "small"
        assert await service.facade.GetModel(models_service_pb2.GetModelRequest(id=name), metadata=caller)
        assert (await service.models.ExplainModel(pb.ExplainModelRequest(id=name), metadata=caller)).model.id == "small"
    for name in ("large-a", "never-was"):  # the same error for both, so a caller cannot find out which models exist
        denied = (grpc.StatusCode.PERMISSION_DENIED, f"The key key_ann may not use the model `{name}`.")
        assert await refused(service.models.GetModel(pb.GetModelRequest(id=name), metadata=caller)) == denied
        assert await refused(service.models.ExplainModel(pb.ExplainModelRequest(id=name), metadata=caller)) == denied
        asked = models_service_pb2.GetModelRequest(id=name)
        assert await refused(service.facade.GetModel(asked, metadata=caller)) == denied
    code, _ = await refused(service.models.GetModel(pb.GetModelRequest(id="never-was"), metadata=ann()))
    assert code == grpc.StatusCode.NOT_FOUND


async def test_methods_with_the_admin_scope(service: Service) -> None:
    models, facade = service.models, service.facade
    calls = {
        "register": lambda who: models.RegisterModel(pb.RegisterModelRequest(), metadata=who),
        "update": lambda who: models.UpdateModel(pb.UpdateModelRequest(), metadata=who),
        "delete": lambda who: models.DeleteModel(pb.DeleteModelRequest(), metadata=who),
        "load": lambda who: models.LoadModel(pb.LoadModelRequest(), metadata=who),
        "unload": lambda who: models.UnloadModel(pb.UnloadModelRequest(), metadata=who),
        "record": lambda who: models.RecordBenchmark(pb.RecordBenchmarkRequest(), metadata=who),
        "DELETE": lambda who: facade.DeleteModel(models_service_pb2.DeleteModelRequest(), metadata=who),
    }
    for name, call in calls.items():
        code, message = await refused(call(ann()))
        assert code == grpc.StatusCode.PERMISSION_DENIED, name
        assert "'admin'" in message
        code, _ = await refused(call(operator()))
        assert code == grpc.StatusCode.INVALID_ARGUMENT, f"{name} gets as far as to what is missing"
    code, _ = await refused(models.WatchModels(pb.WatchModelsRequest(), metadata=ann()).read())
    assert code == grpc.StatusCode.PERMISSION_DENIED
    report = pb.ReportModelStatusRequest()
    for who in (ann(), operator()):
        code, message = await refused(models.ReportModelStatus(report, metadata=who))
        assert code == grpc.StatusCode.PERMISSION_DENIED
        assert "'service'" in message
    code, _ = await refused(models.ReportModelStatus(report, metadata=own_process()))
    assert code == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_process_reports_only_for_its_own_modality(service: Service) -> None:
    report = pb.ReportModelStatusRequest(replica="text-1", modality=TEXT, leaving=True)
    code, message = await refused(service.models.ReportModelStatus(report, metadata=own_process("audio")))
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert "role audio cannot report for text" in message
    await service.models.ReportModelStatus(report, metadata=own_process())


async def test_paths_of_the_host_are_for_the_admin_scope(service: Service) -> None:
    reason = f"{service.files}/small.gguf is missing (file://{service.files}/small.gguf, ALLM_X={service.files}/x y)"
    failed = status("small", FAILED, reason=reason)
    failed.status.next.CopyFrom(model_pb2.NextGeneration(generation=2, state=FAILED, reason=reason))
    failed.status.canonical.CopyFrom(model_pb2.CanonicalFiles(state=FAILED, reason=reason))
    report = pb.ReportModelStatusRequest(replica="text-1", modality=TEXT, statuses=[failed])
    await service.models.ReportModelStatus(report, metadata=own_process())

    async def seen(who: Any) -> str:
        get, name = pb.GetModelRequest(id="small"), models_service_pb2.GetModelRequest(id="small")
        answers = [
            await service.models.GetModel(get, metadata=who),
            await service.models.ListModels(pb.ListModelsRequest(), metadata=who),
            await service.models.ExplainModel(pb.ExplainModelRequest(id="small"), metadata=who),
            await service.facade.ListModels(models_service_pb2.ListModelsRequest(state="all"), metadata=who),
            await service.facade.ListModels(models_service_pb2.ListModelsRequest(), metadata=who),
        ]
        return "".join(map(str, answers)) + (await refused(service.facade.GetModel(name, metadata=who)))[1]

    everything = await seen(operator())
    assert everything.count(f"file://{service.files}/large-a.gguf") == 2
    assert f'folder: "{service.files}"' in everything
    found = await seen(ann())
    assert str(service.files) not in found
    assert str(service.files.parent) not in found
    assert "small.gguf is missing (small.gguf, ALLM_X=x y)" in found, "files are still named"
    assert 'primary: "small.gguf"' in found


def test_parts_show_local_folders_only_to_the_admin_scope() -> None:
    manifest = Manifest(folder="/srv/loras", files=(ManifestFile(path="l.safetensors", size=1),))
    lora = ModelPart(kind="lora", source="file:///srv/loras/l.safetensors", manifest=manifest)

    def shown(scope: str) -> tuple[str, str, str]:
        keep_caller(Caller(identity("key_ann", scope)))
        message = shown_part(lora)
        return message.source, message.manifest.folder, message.manifest.files[0].path

    assert copy_context().run(shown, "inference") == ("", "", "l.safetensors")
    assert copy_context().run(shown, "admin") == (lora.source, "/srv/loras", "l.safetensors")
