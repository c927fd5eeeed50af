"""The memory estimate of gpt-oss-20b in its own size, on GPUs that keep its experts packed and on others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from services.models.descriptor import ModelDescriptor
from services.models.registry import RUNTIMES, Runtime
from services.settings.settings import load_settings
from services.text.manager import TextManager
from services.text.memory_estimate import TextMemoryEstimate

GIB = 1024**3
FILES = 13_761_300_984  # bytes of the published safetensors
# 24 layers of 32 experts, each 3 x 2880 x 2880 numbers of half a byte; a scale of one byte for every 32.
PACKED = 24 * 32 * 3 * 2880 * 2880 // 2
UNPACKED = FILES + 3 * PACKED - PACKED // 16
PUBLISHED: dict[str, object] = {
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
    "dtype": "bfloat16",
}


@pytest.fixture
def gpt_oss(tmp_path: Path) -> ModelDescriptor:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    return ModelDescriptor(
        id="openai/gpt-oss-20b",
        modality="text",
        format="safetensors",
        architecture="gpt_oss",
        capabilities=frozenset({"chat"}),
        size=FILES,
        context_tokens=131072,
        generation=1,
        unpacked_size=UNPACKED,
        quantization="mxfp4",
        files=(),
        primary=tmp_path,
    )


def reckoned(model: ModelDescriptor, name: str, *, packs: bool, **environ: str) -> int:
    """Returns the bytes on an NVIDIA GPU, with the settings as installed."""
    runtime: Runtime = replace(next(one for one in RUNTIMES if one.name == name), device="cuda", packs=packs)
    settings = load_settings(environ).text
    return TextMemoryEstimate(settings, TextManager(settings).options)(model, runtime).devices["cuda:0"]


@pytest.mark.parametrize("runtime", ["torch", "vllm"])
def test_a_card_of_16_gib_holds_gpt_oss(gpt_oss: ModelDescriptor, runtime: str) -> None:
    found = reckoned(gpt_oss, runtime, packs=True)
    assert FILES < found < 15.7 * GIB, "the driver keeps some memory of such a card"


def test_experts_are_reckoned_expanded_where_they_do_not_stay_packed(gpt_oss: ModelDescriptor) -> None:
    for found in (
        reckoned(gpt_oss, "torch", packs=False),  # an old GPU, or no Triton
        reckoned(gpt_oss, "torch", packs=True, ALLM_DTYPE="float32"),
        2 * reckoned(gpt_oss, "torch", packs=True, ALLM_TENSOR_PARALLEL="2"),  # divided models are expanded
    ):
        assert found > UNPACKED
