"""Quantised safetensors in the catalog: replicas report the supported methods; a restart keeps the findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.catalog.catalog_service import refusal, running, torch
from tests.catalog.model_files import safetensors

READS = {"architectures": ["gpt_oss", "qwen3"], "quantizations": ["gpt_oss:mxfp4"]}


def quantised(folder: Path, architecture: str, method: str) -> Path:
    """Writes a model whose config.json names a quantisation method."""
    safetensors(folder, architecture)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method}}))
    return folder


async def test_replica_reports_the_runtimes_for_quantised_weights(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.report(complete=True, runtimes=[torch(**READS)])
        for name, architecture, method in (("a", "gpt_oss", "mxfp4"), ("b", "qwen3", "mxfp4"), ("c", "gpt_oss", "fp8")):
            quantised(service.files / name, architecture, method)
            await service.register(name, name, format="safetensors")
        assert "quantised" not in (await service.get("a")).reason
        assert "weights of qwen3 quantised with 'mxfp4' are not supported by torch" in (await service.get("b")).reason
        assert "weights of gpt_oss quantised with 'fp8' are not supported by torch" in (await service.get("c")).reason
    async with running(tmp_path) as service:
        model = await service.get("c")
        assert model.quantization == "fp8"
        packed = await service.get("a")
        assert packed.unpacked_bytes == packed.size_bytes, "there is nothing in it to unpack"


async def test_two_offers_of_a_runtime_agree_on_what_it_reads(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        chat, embeddings = torch(**READS), torch(**(READS | {"capabilities": ["embeddings"]}))
        assert not await service.report(complete=True, runtimes=[chat, embeddings])
        embeddings.quantizations.append("qwen3:fp8")
        error = await refusal(service.report(complete=True, runtimes=[chat, embeddings]))
        assert "'torch' contradict each other" in error.message
