"""Linear layers with weights in oneDNN's packed layout, for bfloat16 on a CPU.

torch passes oneDNN plain matrices, which it reads row by row. On one core, one row of activations took 27 ms with the
plain weights of a 135M model and 17 ms with packed ones; eight rows took 33 and 18 ms. Each call also costs about 30
microseconds, so layers with the same input (query, key and value; gate and up) are computed as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Names of layers that transformers' definitions call one after the other with the same tensor.
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def computes_bfloat16() -> bool:
    """Returns True if this processor has instructions for bfloat16, or others that make it worthwhile."""
    available: Any = torch.backends.mkldnn.is_available
    return bool(available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linears(model: nn.Module) -> None:
    """Replaces a model's bfloat16 linear layers on the CPU by packed ones, if the CPU computes bfloat16."""
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
    """A replacement for a linear layer, with its weight packed."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, rows: Tensor) -> Tensor:
        """Maps [.., features in] to [.., features out]."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return out


class PartOfLinear(nn.Module):
    """A replacement for one of several linear layers that are computed together."""

    def __init__(self, joined: _Joined, number: int) -> None:
        super().__init__()
        self._joined = joined
        self._number = number

    def forward(self, rows: Tensor) -> Tensor:
        """Maps [.., features in] to [.., features out of this layer]."""
        return self._joined.part(rows, self._number)


class _Joined:
    """Several linear layers as one. Not a module itself; its parts are."""

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
        """Returns one layer's result. The first call computes all results; the last layer's call drops them."""
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
