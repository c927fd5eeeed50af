"""Linear layers whose weights lie as oneDNN wants them, for 16 bits on a CPU.

torch hands oneDNN plain matrices, which it then reads row by row: one row of activations against the weights of a 135M
model took 27 ms of one core, from packed weights 17 ms, and eight rows 33 against 18. Each call costs some 30
microseconds besides, so layers that are given the same rows (query, key and value; gate and up) are computed as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Names that transformers' definitions give to layers which they call with one and the same tensor, one after the other.
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def computes_bfloat16() -> bool:
    """Whether this processor has instructions for bfloat16, or at least those that make it worth while."""
    available: Any = torch.backends.mkldnn.is_available
    return bool(available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linears(model: nn.Module) -> None:
    """Replaces all linear layers of a model whose tensors are in bfloat16 on a CPU that computes in it."""
    if not computes_bfloat16():
        return
    for module in list(model.modules()):
        layers = {name: child for name, child in module.named_children() if isinstance(child, nn.Linear)}
        layers = {name: layer for name, layer in layers.items() if _can_be_packed(layer)}
        for names in _TOGETHER:
            if all(name in layers for name in names) and _alike([layers[name] for name in names]):
                joined = _Joined([layers.pop(name) for name in names])
                for number, name in enumerate(names):
                    setattr(module, name, PartOfLinear(joined, number))
        for name, layer in layers.items():
            setattr(module, name, PackedLinear(layer))


class PackedLinear(nn.Module):
    """Stands in for a linear layer and takes its weight over."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, rows: Tensor) -> Tensor:
        """[.., features in] to [.., features out]."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return out


class PartOfLinear(nn.Module):
    """Stands in for one of several linear layers that are computed together."""

    def __init__(self, joined: _Joined, number: int) -> None:
        super().__init__()
        self._joined = joined
        self._number = number

    def forward(self, rows: Tensor) -> Tensor:
        """[.., features in] to [.., features out of this layer]."""
        return self._joined.part(rows, self._number)


class _Joined:
    """Several linear layers as one. Not a module: each of its parts is one."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        whole = nn.Linear(1, 1, bias=linears[0].bias is not None, device="meta")
        whole.weight = nn.Parameter(torch.cat([linear.weight.detach() for linear in linears]), requires_grad=False)
        if linears[0].bias is not None:
            whole.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]), requires_grad=False)
        self._sizes = [linear.out_features for linear in linears]
        self._packed = PackedLinear(whole)
        self._rows: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def part(self, rows: Tensor, number: int) -> Tensor:
        """A layer's result. All are computed for the first one that asks, and kept until the last one has."""
        if self._rows is not rows:
            self._rows = rows
            self._parts = self._packed(rows).split(self._sizes, -1)
        part = self._parts[number]
        if number == len(self._sizes) - 1:
            self._rows, self._parts = None, ()
        return part


def _can_be_packed(linear: nn.Linear) -> bool:
    return type(linear) is nn.Linear and linear.weight.dtype == torch.bfloat16 and linear.weight.device.type == "cpu"


def _alike(linears: Sequence[nn.Linear]) -> bool:
    first = linears[0]
    return all(
        each.in_features == first.in_features and (each.bias is None) == (first.bias is None) for each in linears
    )
