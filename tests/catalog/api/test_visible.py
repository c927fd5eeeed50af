"""The models that a caller with a model list sees in both APIs, and the scope that each method needs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.models.v1 import model_service_pb2 as pb
from allm.openai.v1 import models_service_pb2

from services.auth.authentication import Authenticator
from services.rpc.call import Call
from tests.catalog.catalog_service import READY, Service, running, status
from tests.identities import SECRET, ann, operator, own_process


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """Yields a catalog with three ready models: `small` (alias `gpt-4o`), `large-a` and `large-b`."""
    async with running(tmp_path) as service:
        await service.register("small", aliases=["gpt-4o"])
        await service.register("large-a")
        await service.register("large-b")
        statuses = [status(model, READY) for model in ("small", "large-a", "large-b")]
        await service.report(complete=True, statuses=statuses)
        monkeypatch.setattr(Call, "authenticator", Authenticator(SECRET))
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


async def test_what_needs_the_admin_scope(service: Service) -> None:
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
