"""Prints, for layers of packed experts, how far Triton's interpreter is from a product of the unpacked weights.

A process of its own: Triton chooses its interpreter (TRITON_INTERPRET=1) when a kernel is defined. Each line is JSON.
"""

from __future__ import annotations

import json
import sys

import torch

from services.text.engine.runtimes.torch import packed_experts
from tests.text.families.packed_experts import BIAS, VALUES

ALPHA, LIMIT = 1.702, 7.0


def main() -> None:
    """Computes the layers of the argument, a list of [experts, hidden, inner, tokens, experts per token]."""
    torch.manual_seed(0)
    for experts, hidden, inner, tokens, top in json.loads(sys.argv[1]):
        layer = {**_packed(experts, "gate_up_proj", 2 * inner, hidden), **_packed(experts, "down_proj", hidden, inner)}
        rows = torch.randn(tokens, hidden).bfloat16()
        chosen = torch.stack([torch.randperm(experts)[:top] for _ in range(tokens)])
        weights = torch.rand(tokens, top).bfloat16()
        found = packed_experts.experts(rows, chosen, weights, layer, alpha=ALPHA, limit=LIMIT).float()
        wanted = _expected(rows.float(), chosen, weights.float(), layer)
        print(json.dumps({"error": float((found - wanted).norm() / wanted.norm())}), flush=True)


def _packed(experts: int, name: str, rows: int, columns: int) -> dict[str, torch.Tensor]:
    shape = experts, rows, columns // 32
    return {
        f"{name}_blocks": torch.randint(0, 256, (*shape, 16), dtype=torch.uint8),
        f"{name}_scales": torch.randint(BIAS - 9, BIAS - 3, shape, dtype=torch.uint8),
        f"{name}_bias": torch.randn(experts, rows).bfloat16(),
    }


def _expected(
    rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, layer: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Computes the layer pair by pair, as transformers defines it."""
    out = torch.zeros_like(rows)
    for token, choices in enumerate(chosen.tolist()):
        for place, expert in enumerate(choices):
            both = _unpacked(layer, "gate_up_proj", expert) @ rows[token] + layer["gate_up_proj_bias"][expert]
            gate, up = both[::2].clamp(max=LIMIT), both[1::2].clamp(-LIMIT, LIMIT)
            active = (up + 1) * gate * torch.sigmoid(ALPHA * gate)
            made = _unpacked(layer, "down_proj", expert) @ active + layer["down_proj_bias"][expert]
            out[token] += weights[token, place] * made
    return out


def _unpacked(layer: dict[str, torch.Tensor], name: str, expert: int) -> torch.Tensor:
    blocks, scales = layer[f"{name}_blocks"][expert].long(), layer[f"{name}_scales"][expert]
    numbers = torch.tensor(VALUES)[torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)]
    return (numbers * 2.0 ** (scales.float() - BIAS)[..., None]).flatten(-2)


if __name__ == "__main__":
    main()
