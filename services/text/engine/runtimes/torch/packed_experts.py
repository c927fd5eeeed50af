"""The experts of gpt-oss with the packed tensors of the checkpoint, computed by packed_kernels.py.

transformers would expand them to bfloat16, four times the memory: a quantizer of ours, which it calls while it loads a
model, puts PackedExperts in the place of its own experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from services.text.engine.runtimes.torch.packed_kernels import DTYPE, down, gate_up, route

METHOD = "allm_mxfp4"  # the name of the quantizer below among transformers' own
BLOCK = 32  # numbers that share a scale
LARGEST_SCALE = 128  # exponent byte: the kernels compute with 2**(scale - 1)
# Tokens in a tile -> (rows of weights in a tile, groups in a step, warps, pipeline stages).
TILES = {1: (16, 16, 4, 2), 16: (64, 4, 4, 3), 64: (64, 4, 4, 3)}
SPREAD = 8  # pairs of token and expert for each expert, above which the largest tile is worthwhile
ROUTED = 1024  # pairs that `route` reads at once


class PackedExperts(nn.Module):
    """The experts of one layer with the tensors of the checkpoint: a replacement for transformers' GptOssExperts.

    Shapes: blocks uint8 [experts, rows, groups, 16], scales uint8 [experts, rows, groups], bias [experts, rows]. `rows`
    are 2 x inner (gate and up, interleaved) or hidden; a group is 32 columns.
    """

    def __init__(self, config: Any, alpha: float, limit: float) -> None:
        super().__init__()
        count, hidden, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
        for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            blocks = torch.empty(count, rows, columns // BLOCK, BLOCK // 2, dtype=torch.uint8)
            self.register_parameter(f"{name}_blocks", nn.Parameter(blocks, requires_grad=False))
            self.register_parameter(f"{name}_scales", nn.Parameter(blocks[..., 0].clone(), requires_grad=False))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.empty(count, rows), requires_grad=False))
        self._alpha = alpha
        self._limit = limit

    def forward(self, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor) -> Tensor:
        """Maps tokens [tokens, hidden] to [tokens, hidden]; indices and weights are [tokens, experts per token]."""
        return experts(
            hidden_states, router_indices, routing_weights, self._parameters, alpha=self._alpha, limit=self._limit
        )


def experts(
    x: Tensor, chosen: Tensor, weights: Tensor, packed: Mapping[str, Any], *, alpha: float, limit: float
) -> Tensor:
    """Computes the experts of a layer for the tokens `x` [tokens, hidden]."""
    tokens, hidden = x.shape
    top = chosen.shape[1]
    pairs = tokens * top
    count, _, groups, _ = packed["gate_up_proj_blocks"].shape
    inner_groups = packed["down_proj_blocks"].shape[2]
    inner = inner_groups * BLOCK
    flat = chosen.reshape(-1).to(torch.int32)
    tile = _tile(pairs, count)
    order, slots, number = flat, flat, pairs
    if tile > 1:
        number = pairs // tile + count
        order = torch.empty(pairs, dtype=torch.int32, device=x.device)
        slots = torch.empty(number, 3, dtype=torch.int32, device=x.device)
        route[(count,)](flat, order, slots, pairs, TOKENS=tile, CHUNK=ROUTED)
    rows, step, warps, stages = TILES[tile]
    fixed = {"ROWS": rows, "TOKENS": tile, "STEP": step, "DTYPE": DTYPE, "num_warps": warps, "num_stages": stages}
    words = x.to(torch.bfloat16).contiguous().view(torch.int32)
    active = torch.empty(pairs, inner, dtype=torch.bfloat16, device=x.device)
    gate_up[(number, triton.cdiv(inner, rows))](
        words, packed["gate_up_proj_blocks"], packed["gate_up_proj_scales"], packed["gate_up_proj_bias"], active, order,
        slots, top, alpha, limit, inner, groups, **fixed,
    )  # fmt: skip
    out = torch.empty(pairs, hidden, dtype=torch.float32, device=x.device)
    down[(number, triton.cdiv(hidden, rows))](
        active.view(torch.int32), packed["down_proj_blocks"], packed["down_proj_scales"], packed["down_proj_bias"],
        weights.contiguous(), out, order, slots, hidden, inner_groups, **fixed,
    )  # fmt: skip
    return out.view(tokens, top, hidden).sum(1).to(x.dtype)


def _tile(pairs: int, count: int) -> int:
    """Returns the tokens in a tile: 1 if most experts have none or one, more if they have several on average."""
    if pairs <= count:
        return 1
    return 16 if pairs <= SPREAD * count else 64


def can_compute(model: nn.Module) -> bool:
    """Returns True if the scales of all packed experts are in the range that the kernels compute with."""
    scales = [parameter for name, parameter in model.named_parameters() if name.endswith("_scales")]
    return all(int(each.max()) <= LARGEST_SCALE for each in scales)


@register_quantization_config(METHOD)
class PackedConfig(QuantizationConfigMixin):
    """Tells transformers to load experts as PackedExperts."""

    def __init__(self, **_: Any) -> None:
        self.quant_method: Any = METHOD


@register_quantizer(METHOD)
class PackedQuantizer(HfQuantizer):
    """Replaces the experts before transformers reads the weights, so that these are never expanded."""

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **_: Any) -> None:
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, GptOssExperts):
                    with torch.device("meta"):
                        setattr(module, name, PackedExperts(model.config.get_text_config(), child.alpha, child.limit))

    def is_serializable(self) -> bool:
        """Returns False: a model is only read."""
        return False

    @property
    def is_trainable(self) -> bool:
        """False."""
        return False
