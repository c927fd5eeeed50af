"""The experts of gpt-oss with the packed tensors of the checkpoint, and the Triton kernels that compute them.

transformers would expand them to bfloat16, four times the memory: a quantizer of ours, which it calls while it loads a
model, puts PackedExperts in the place of its own experts.

A number takes four bits, and 32 neighbours, a group, share a scale of one byte. The kernels are grouped matrix products
that unpack MXFP4 in registers: a step reads a quarter of the bytes that bfloat16 would take. `gate_up` and `down`
compute a layer's experts. Weights are the long side of each product and tokens the short one, so that few tokens cost
little padding; a single token needs no tensor core.

Format: OCP Microscaling Formats (MX) Specification 1.0, FP4 E2M1 with a shared scale E8M0; byte k / 2 of a row holds
the numbers k (low half) and k + 1. Nothing here reads a number on the host, so a CUDA graph can record a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

METHOD = "allm_mxfp4"  # the name of the quantizer below among transformers' own
BLOCK = 32  # numbers that share a scale
LARGEST_SCALE = 128  # exponent byte: the kernels compute with 2**(scale - 1)
# Tokens in a tile -> (rows of weights in a tile, groups in a step, warps, pipeline stages).
TILES = {1: (16, 16, 4, 2), 16: (64, 4, 4, 3), 64: (64, 4, 4, 3)}
SPREAD = 8  # pairs of token and expert for each expert, above which the largest tile is worthwhile
ROUTED = 1024  # pairs that `route` reads at once
# Triton's interpreter has no arithmetic in bfloat16.
DTYPE = tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16


@triton.jit
def _number(bits):
    """Returns the E2M1 numbers in the low four bits (uint32), divided by 2**126, as float32.

    E2M1's bits at the low end of float32's exponent are that quotient, also of 0.5, which is subnormal in both.
    """
    return (((bits << 28) & 0x80000000) | ((bits << 22) & 0x01C00000)).to(tl.float32, bitcast=True)


@triton.jit
def _power(exponents):
    """Returns 2**(exponent - 127) as float32, for exponents from 1 to 254 (uint32)."""
    return (exponents << 23).to(tl.float32, bitcast=True)


@triton.jit
def _halves(words, DTYPE: tl.constexpr):
    """Splits pairs of bfloat16 (int32) into the first ones and the second ones."""
    bits = words.to(tl.uint32, bitcast=True)
    low = (bits & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    high = (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return low.to(DTYPE), high.to(DTYPE)


@triton.jit
def _product(
    blocks, scales, rows, rows_mask, x, tokens, tokens_mask, groups: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, STEP: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Multiplies weight rows by tokens on the tensor cores: [ROWS, TOKENS] in float32.

    `blocks` [.., groups, 16] and `scales` [.., groups] are an expert's; `x` [.., groups x 16] are tokens as pairs of
    bfloat16. The weights in bfloat16 are exact.
    """
    group = tl.arange(0, STEP)
    byte = tl.arange(0, 16)
    pair = tl.arange(0, STEP * 16)
    total = tl.zeros((ROWS, TOKENS), tl.float32)
    for first in range(0, groups, STEP):
        at = rows[:, None] * groups + first + group[None, :]
        wanted = rows_mask[:, None] & (first + group < groups)[None, :]
        bits = tl.load(blocks + at[:, :, None] * 16 + byte[None, None, :], mask=wanted[:, :, None], other=0).to(
            tl.uint32
        )
        factor = _power(tl.load(scales + at, mask=wanted, other=0).to(tl.uint32) + 126)[:, :, None]
        even = tl.reshape((_number(bits) * factor).to(DTYPE), (ROWS, STEP * 16))
        odd = tl.reshape((_number(bits >> 4) * factor).to(DTYPE), (ROWS, STEP * 16))
        column = first * 16 + pair
        inside = (column < groups * 16)[:, None] & tokens_mask[None, :]
        words = tl.load(x + tokens[None, :] * (groups * 16) + column[:, None], mask=inside, other=0)
        low, high = _halves(words, DTYPE)
        total = tl.dot(even, low, total)
        total = tl.dot(odd, high, total)
    return total


@triton.jit
def _product_of_one(
    blocks, scales, rows, rows_mask, x, token, groups: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Multiplies weight rows by one token: [ROWS] in float32. The arguments are those of `_product`."""
    group = tl.arange(0, STEP)
    inner = group[:, None] * 16 + tl.arange(0, 16)[None, :]
    total = tl.zeros((ROWS, STEP), tl.float32)
    for first in range(0, groups, STEP):
        at = rows[:, None] * groups + first + group[None, :]
        there = first + group < groups
        wanted = rows_mask[:, None] & there[None, :]
        bits = tl.load(blocks + at[:, :, None] * 16 + tl.arange(0, 16)[None, None, :], mask=wanted[:, :, None], other=0)
        bits = bits.to(tl.uint32)
        factor = _power(tl.load(scales + at, mask=wanted, other=0).to(tl.uint32) + 26)
        low, high = _halves(
            tl.load(x + token * (groups * 16) + first * 16 + inner, mask=there[:, None], other=0), tl.float32
        )
        # 2**100 keeps the products normal; the factor has the rest of 2**126.
        low, high = (low * 1.2676506002282294e30)[None, :, :], (high * 1.2676506002282294e30)[None, :, :]
        total += tl.sum(_number(bits) * low + _number(bits >> 4) * high, 2) * factor
    return tl.sum(total, 1)


@triton.jit
def _place(slot, order, slots, TOKENS: tl.constexpr):
    """Returns a slot's expert (-1: an empty slot), its pairs of token and expert, and their mask."""
    expert = tl.load(slots + slot * 3)
    at = tl.load(slots + slot * 3 + 1) + tl.arange(0, TOKENS)
    mask = at < tl.load(slots + slot * 3 + 2)
    return expert, tl.load(order + at, mask=mask, other=0), mask


@triton.jit
def _activate(gate, up, alpha, limit):
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    return ((up + 1) * gate / (1 + tl.exp(-alpha * gate))).to(tl.bfloat16)


@triton.jit
def gate_up(
    x, blocks, scales, bias, out, order, slots, top, alpha, limit, inner_size, groups: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, STEP: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Writes the activation of gate and up, [pairs, inner]; a weight's even rows are the gate, its odd ones up.

    TOKENS = 1: `slots` are the router's choices, and each program computes one pair.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = row < inner_size
    if TOKENS == 1:
        pair = tl.program_id(0)
        base = tl.load(slots + pair).to(tl.int64) * 2 * inner_size
        blocks += base * groups * 16
        scales += base * groups
        gate = _product_of_one(blocks, scales, 2 * row, there, x, pair // top, groups, ROWS, STEP)
        up = _product_of_one(blocks, scales, 2 * row + 1, there, x, pair // top, groups, ROWS, STEP)
        gate += tl.load(bias + base + 2 * row, mask=there, other=0).to(tl.float32)
        up += tl.load(bias + base + 2 * row + 1, mask=there, other=0).to(tl.float32)
        tl.store(out + pair * inner_size + row, _activate(gate, up, alpha, limit), mask=there)
    else:
        expert, pairs, mask = _place(tl.program_id(0), order, slots, TOKENS)
        if expert >= 0:
            base = expert.to(tl.int64) * 2 * inner_size
            blocks += base * groups * 16
            scales += base * groups
            token = pairs // top
            gate = _product(blocks, scales, 2 * row, there, x, token, mask, groups, ROWS, TOKENS, STEP, DTYPE)
            up = _product(blocks, scales, 2 * row + 1, there, x, token, mask, groups, ROWS, TOKENS, STEP, DTYPE)
            gate += tl.load(bias + base + 2 * row, mask=there, other=0).to(tl.float32)[:, None]
            up += tl.load(bias + base + 2 * row + 1, mask=there, other=0).to(tl.float32)[:, None]
            at = pairs[None, :] * inner_size + row[:, None]
            tl.store(out + at, _activate(gate, up, alpha, limit), mask=there[:, None] & mask[None, :])


@triton.jit
def down(
    x, blocks, scales, bias, weights, out, order, slots, size, groups: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, STEP: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Writes each pair's output times the router's weight, [pairs, size] in float32."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = row < size
    if TOKENS == 1:
        pair = tl.program_id(0)
        base = tl.load(slots + pair).to(tl.int64) * size
        total = _product_of_one(
            blocks + base * groups * 16, scales + base * groups, row, there, x, pair, groups, ROWS, STEP
        )
        total += tl.load(bias + base + row, mask=there, other=0).to(tl.float32)
        tl.store(out + pair * size + row, total * tl.load(weights + pair).to(tl.float32), mask=there)
    else:
        expert, pairs, mask = _place(tl.program_id(0), order, slots, TOKENS)
        if expert >= 0:
            base = expert.to(tl.int64) * size
            blocks += base * groups * 16
            scales += base * groups
            total = _product(blocks, scales, row, there, x, pairs, mask, groups, ROWS, TOKENS, STEP, DTYPE)
            total += tl.load(bias + base + row, mask=there, other=0).to(tl.float32)[:, None]
            total *= tl.load(weights + pairs, mask=mask, other=0).to(tl.float32)[None, :]
            tl.store(out + pairs[None, :] * size + row[:, None], total, mask=there[:, None] & mask[None, :])


@triton.jit
def route(chosen, order, slots, pairs, TOKENS: tl.constexpr, CHUNK: tl.constexpr):
    """Sorts the pairs by expert and divides each expert's into slots of TOKENS. One program per expert.

    An expert whose pairs start at `below` has the slots from below // TOKENS + expert on: never fewer than it needs, so
    that no program has to know another's.
    """
    expert = tl.program_id(0)
    inner = tl.arange(0, CHUNK)
    below = 0
    mine = 0
    for first in range(0, pairs, CHUNK):
        there = first + inner < pairs
        choice = tl.load(chosen + first + inner, mask=there, other=2147483647)
        below += tl.sum((choice < expert).to(tl.int32))
        mine += tl.sum((choice == expert).to(tl.int32))
    at = below
    for first in range(0, pairs, CHUNK):
        there = first + inner < pairs
        hit = there & (tl.load(chosen + first + inner, mask=there, other=2147483647) == expert)
        place = at + tl.cumsum(hit.to(tl.int32)) - 1
        tl.store(order + place, first + inner, mask=hit)
        at += tl.sum(hit.to(tl.int32))
    begin = below // TOKENS + expert
    for slot in range(begin, (below + mine) // TOKENS + expert + 1):
        start = below + (slot - begin) * TOKENS
        tl.store(slots + slot * 3, tl.where(start < below + mine, expert, -1))
        tl.store(slots + slot * 3 + 1, start)
        tl.store(slots + slot * 3 + 2, below + mine)


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
