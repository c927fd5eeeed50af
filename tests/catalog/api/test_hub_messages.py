"""SearchHub over gRPC, with a hub on loopback and a replica that reports its memory."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from allm.models.v1 import figures_pb2, model_service_pb2
from huggingface_hub import constants

from services.catalog.api import hub_messages
from tests.case import case
from tests.catalog.catalog_service import refusal, running
from tests.catalog.model_files import gguf
from tests.catalog.reported_figures import GIB
from tests.loopback_hub import LoopbackHub

Code = grpc.StatusCode
Request = model_service_pb2.SearchHubRequest


async def test_results_have_size_licence_and_fit(hub: LoopbackHub, tmp_path: Path) -> None:
    for name, padding in (("Q2_K", 100), ("Q4_K_M", 400), ("Q8_0", 800)):
        gguf(tmp_path / "hub" / f"m-{name}.gguf", padding=padding)
    about = {"tags": ["gguf", "license:mit"], "gguf": {"architecture": "llama"}, "downloads": 12}
    hub.add("org/m-gguf", tmp_path / "hub", **about)
    hub.add("org/m-clip-gguf", tmp_path / "hub", **(about | {"gguf": {"architecture": "clip"}, "downloads": 1}))
    async with running(tmp_path) as service:
        host = figures_pb2.HostFigures(id="h", name="h", total_bytes=10 * GIB, used_bytes=GIB, threshold_share=0.9)
        await service.report(complete=True, figures=figures_pb2.ReplicaFigures(host=host))
        answer = await service.models.SearchHub(Request(query="m", format="gguf"))
        runs, other = answer.repositories
        assert (runs.name, runs.license, runs.downloads, runs.gated) == ("org/m-gguf", "mit", 12, False)
        assert [(each.label, each.recommended) for each in runs.choices] == [
            ("Q2_K", False),
            ("Q4_K_M", True),
            ("Q8_0", False),
        ]
        assert {each.fit for each in runs.choices} == {model_service_pb2.HUB_FIT_FITS}
        assert all(each.memory_bytes > each.size_bytes for each in runs.choices)
        assert {each.fit for each in other.choices} == {model_service_pb2.HUB_FIT_UNSUPPORTED}
        assert not any(each.recommended for each in other.choices)
        assert "clip" in other.choices[0].reason
        # What it proposes can be registered as it is.
        chosen = runs.choices[1]
        request = model_service_pb2.RegisterModelRequest(id=chosen.id, source=chosen.source, format="gguf")
        assert (await service.models.RegisterModel(request)).model.id == "m-q4_k_m"


async def test_wrong_requests_and_a_hub_that_is_away(hub: LoopbackHub, tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        wrong = [
            (Request(format=""), "format"),
            (Request(format="onnx"), "format"),
            (Request(format="gguf", query="x" * (hub_messages.MAX_QUERY + 1)), "query"),
            (Request(format="gguf", limit=31), "limit"),
            (Request(format="gguf", limit=-1), "limit"),
        ]
        for request, param in wrong:
            with case(param=param):
                error = await refusal(service.models.SearchHub(request))
                assert (error.code, error.param) == (Code.INVALID_ARGUMENT, param)
        assert not hub.requests
        hub.close()
        error = await refusal(service.models.SearchHub(Request(format="gguf")))
        assert (error.code, error.reason) == (Code.UNAVAILABLE, "MODEL_NOT_READY")


async def test_a_watch_says_whether_the_hub_may_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as service:
        for offline, hub in ((False, True), (True, False)):
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
            async for event in service.watch():
                assert event.synced.hub is hub
                break
