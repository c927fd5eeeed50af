"""A model folder in the shape of gpt-oss with random weights: MXFP4 experts, the rest bf16, a shard for each layer.

The model generates nonsense at the real model's speed. Making it needs torch, transformers, safetensors and tokenizers,
and no network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models
from transformers import GptOssConfig, GptOssForCausalLM

_BLOCK = 32  # numbers with a shared scale
_EXPONENT = 120  # of the scales (127 is 1): numbers up to 6 / 128
_DEVIATION = 0.02
_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that GPT-2's alphabet keeps


def config(tiny: bool, layers: int = 0) -> GptOssConfig:
    """Returns the published 20B shape, or a tiny one that takes seconds on a CPU; `layers`: other than it has."""
    if not tiny:
        return GptOssConfig(num_hidden_layers=layers or 24, num_local_experts=32)
    return GptOssConfig(
        num_hidden_layers=layers or 2,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=64,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=16,
        max_position_embeddings=4096,
        eos_token_id=1023,
        pad_token_id=1023,
    )


def write(shape: GptOssConfig, folder: Path, device: str) -> None:
    """Writes the whole model into `folder`; `device` generates the random numbers."""
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(_shards(shape, device)):
        file = f"model-{number:05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    described = shape.to_dict() | {
        "architectures": ["GptOssForCausalLM"],
        "dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "embed_tokens",
                "lm_head",
            ],
        },
    }
    _write_json(folder / "config.json", described)
    _write_json(folder / "generation_config.json", {"eos_token_id": shape.eos_token_id})
    write_tokenizer(int(shape.vocab_size), folder / "tokenizer.json")


def _shards(shape: GptOssConfig, device: str) -> Iterator[dict[str, torch.Tensor]]:
    """Yields the tensors outside the layers, then those of each layer."""
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in GptOssForCausalLM(shape).state_dict().items()}
    for prefix in [None, *(f"model.layers.{number}." for number in range(int(shape.num_hidden_layers)))]:
        tensors: dict[str, torch.Tensor] = {}
        for name, size in shapes.items():
            if not (name.startswith(prefix) if prefix else ".layers." not in name):
                continue
            if name.endswith(("gate_up_proj", "down_proj")):
                tensors |= _packed(name, size, device)
            elif "norm" in name:
                tensors[name] = torch.ones(size, dtype=torch.bfloat16)
            else:
                values = torch.randn(size, device=device, dtype=torch.bfloat16) * _DEVIATION
                tensors[name] = values.cpu()
        yield tensors


def _packed(name: str, size: torch.Size, device: str) -> dict[str, torch.Tensor]:
    """Returns random MXFP4 weights of experts, [experts, in, out]: two numbers per byte, one scale per 32 numbers."""
    experts, inner, outer = size
    blocks = torch.randint(0, 256, (experts, outer, inner // _BLOCK, _BLOCK // 2), device=device, dtype=torch.uint8)
    scales = torch.full((experts, outer, inner // _BLOCK), _EXPONENT, dtype=torch.uint8)
    return {f"{name}_blocks": blocks.cpu(), f"{name}_scales": scales}


def write_tokenizer(size: int, path: Path) -> None:
    """Writes a tokenizer with a name for every token: single bytes, and tokens that never merge."""
    vocabulary = {chr(byte): place for place, byte in enumerate(_BYTES)}
    vocabulary |= {f"Ġ{token}": token for token in range(len(vocabulary), size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
