"""Tensor parallelism: one model on several GPUs of a machine, or in several processes on a CPU.

Each rank holds a share of the weights: attention heads, columns and rows of the feed-forward layers by the definition's
own plan (`base_model_tp_plan`), and whole experts. After each attention and each feed-forward layer the ranks sum their
shares. The output layer is not divided, because only the first rank, which samples, needs it.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from services.text.engine.runtimes.torch.recurrence import ARCHITECTURES
from services.worker.messages import EngineError

STEP_SECONDS = 120  # maximum wait for another rank within a step
# Defaults for definitions whose plan omits attention.
_ATTENTION = {f"layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"} | {
    "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.self_attn.sinks": "colwise",
}
_COLUMNS = {"colwise", "local_colwise"}
_ROWS = {"rowwise", "local_rowwise"}
_WHOLE = {"replicated_with_grad_allreduce", "colwise_gather_output", "colwise_rep"}


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's rank among those that compute a model together."""

    rank: int
    count: int

    def share(self, size: int) -> slice:
        """Returns this rank's part of `size` items; `count` divides `size`."""
        part = size // self.count
        return slice(self.rank * part, (self.rank + 1) * part)


def join(ranks: Ranks, meeting: Path, device: torch.device) -> None:
    """Joins the process group of all ranks through a shared file."""
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=distributed.FileStore(str(meeting), ranks.count),  # type: ignore[attr-defined]
        rank=ranks.rank,
        world_size=ranks.count,
        timeout=timedelta(seconds=STEP_SECONDS),
    )


def leave() -> None:
    """Leaves the process group."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def divide(model: Any, ranks: Ranks) -> None:
    """Reduces each layer to this rank's share of its weights.

    Raises:
        EngineError: UNSUPPORTED if the plan has an unknown style.
    """
    config = model.config.get_text_config()
    plan = _ATTENTION | dict(getattr(config, "base_model_tp_plan", None) or {})
    prefix = f"{model.base_model_prefix}." if model.base_model_prefix else ""
    for name, module in list(model.named_modules()):
        if name.endswith(".experts"):
            _divide_experts(module, ranks)
        elif isinstance(module, nn.Linear) and ".experts." not in name:
            style = _style(plan, name.removeprefix(prefix))
            if style in _COLUMNS:
                _keep(module, "weight", 0, ranks)
                _keep(module, "bias", 0, ranks)
            elif style in _ROWS:
                _keep(module, "weight", 1, ranks)
                owner, _, child = name.rpartition(".")
                setattr(model.get_submodule(owner), child, SummedLinear(module))
        _keep(module, "sinks", 0, ranks)


class SummedLinear(nn.Module):
    """A linear layer whose input columns are divided among the ranks; their results are summed."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._bias = linear.bias
        linear.register_parameter("bias", None)
        self.linear = linear

    def forward(self, rows: Tensor) -> Tensor:
        """Maps [.., this rank's features] to [.., features], the same on all ranks."""
        out: Tensor = self.linear(rows)
        distributed.all_reduce(out)
        return out if self._bias is None else out + self._bias


def _divide_experts(experts: Any, ranks: Ranks) -> None:
    """Keeps this rank's experts. Routing weights of other experts become 0, and the ranks' results are summed."""
    for name in list(experts._parameters):
        _keep(experts, name, 0, ranks)
    mine = ranks.share(int(experts.num_experts))
    experts.num_experts = mine.stop - mine.start
    compute = experts.forward

    def forward(rows: Tensor, chosen: Tensor, weights: Tensor, *more: Any, **other: Any) -> Tensor:
        here = (chosen >= mine.start) & (chosen < mine.stop)
        chosen = torch.where(here, chosen - mine.start, 0)
        out: Tensor = compute(rows, chosen, torch.where(here, weights, 0), *more, **other)
        distributed.all_reduce(out)
        return out

    experts.forward = forward


def _keep(module: nn.Module, name: str, dimension: int, ranks: Ranks) -> None:
    """Replaces a parameter by a copy of this rank's share along a dimension."""
    whole = module._parameters.get(name)
    if whole is not None:
        part = ranks.share(whole.shape[dimension])
        share = whole.detach().narrow(dimension, part.start, part.stop - part.start).clone()
        module._parameters[name] = nn.Parameter(share, requires_grad=False)


def _style(plan: dict[str, str], name: str) -> str | None:
    for pattern, style in plan.items():
        if fnmatch.fnmatchcase(name, pattern):
            if style not in _COLUMNS | _ROWS | _WHOLE:
                raise EngineError("UNSUPPORTED", f"tensor parallelism of {name} by {style!r} is not known here")
            return style
    return None


def check_divisible(config: Any, count: int) -> None:
    """Raises EngineError UNSUPPORTED if heads or experts cannot be divided evenly among `count` ranks."""
    if count > 1 and config.model_type in ARCHITECTURES:
        message = f"the architecture {config.model_type!r} cannot be divided among GPUs (ALLM_TENSOR_PARALLEL)"
        raise EngineError("UNSUPPORTED", message)
    wanted = {
        "attention heads": config.num_attention_heads,
        "key-value heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "intermediate features": getattr(config, "intermediate_size", 0) or 0,
        "experts": getattr(config, "num_local_experts", 0) or getattr(config, "num_experts", 0) or 0,
    }
    for what, number in wanted.items():
        if number % count:
            message = f"{number} {what} cannot be divided among {count} (ALLM_TENSOR_PARALLEL)"
            raise EngineError("UNSUPPORTED", message)
