"""Pooling of hidden states to one vector per input.

Shapes: hidden is [inputs, tokens, size]; lengths is [inputs], the number of an input's tokens without the padding at
the end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # hidden, lengths -> [inputs, size], float32


def _own(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Returns the mask of tokens that are not padding: [inputs, tokens, 1], float32."""
    places = torch.arange(hidden.shape[1], device=hidden.device)
    return (places < lengths[:, None]).unsqueeze(-1).float()


def _mean(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return (hidden.float() * _own(hidden, lengths)).sum(1) / lengths[:, None]


def _mean_sqrt_len(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return (hidden.float() * _own(hidden, lengths)).sum(1) / lengths[:, None].float().sqrt()


def _weightedmean(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Weights each token by its position, counted from one."""
    weights = _own(hidden, lengths) * torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[None, :, None]
    return (hidden.float() * weights).sum(1) / weights.sum(1)


def _max(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return hidden.float().masked_fill(_own(hidden, lengths) == 0, -torch.inf).amax(1)


def _cls(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return hidden[:, 0].float()


def _last(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1].float()


# The names are those of `recipe.POOLINGS`.
POOLS: dict[str, Pool] = {
    "mean": _mean,
    "cls": _cls,
    "last": _last,
    "max": _max,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weightedmean,
}
