"""Devices of runtimes in the catalog: each runtime has its own, or a reason why it has none."""

from __future__ import annotations

from pathlib import Path

from allm.models.v1 import model_service_pb2

from tests.catalog.catalog_service import Service, llama_cpp, refusal, running, torch
from tests.catalog.model_files import gguf, safetensors

DEVICES = ["cpu", "cuda", "vulkan"]


async def verdicts(service: Service, model_id: str) -> dict[str, tuple[bool, str, str]]:
    explained = await service.models.ExplainModel(model_service_pb2.ExplainModelRequest(id=model_id))
    (resolution,) = explained.resolutions
    return {one.runtime: (one.able, one.device, one.reason) for one in resolution.runtimes}


async def test_each_runtime_is_explained_with_its_own_device(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        gguf(service.files / "a.gguf")
        safetensors(service.files / "b", "qwen3")
        await service.register("a", "a.gguf")
        await service.register("b", "b", format="safetensors")
        offers = [llama_cpp(devices=DEVICES, device="vulkan"), torch(device="cuda", device_missing="no driver")]
        await service.report(complete=True, device="vulkan", runtimes=offers)
        assert (await verdicts(service, "a"))["llama_cpp"][:2] == (True, "vulkan")
        able, device, reason = (await verdicts(service, "b"))["torch"]
        assert (able, device, reason) == (False, "cuda", "torch cannot compute on cuda here: no driver")
        assert (await service.get("b")).reason == "b: torch cannot compute on cuda here: no driver"


async def test_an_older_service_has_one_device_for_all(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        safetensors(service.files / "b", "qwen3")
        await service.register("b", "b", format="safetensors")
        await service.report(complete=True, device="cuda", runtimes=[torch()])
        assert (await verdicts(service, "b"))["torch"][:2] == (True, "cuda")
        error = await refusal(service.report(complete=True, device="cuda", runtimes=[torch(device="tpu")]))
        assert "'runtimes.device' must be one of cuda, vulkan, mps, cpu" in error.message
