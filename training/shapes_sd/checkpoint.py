"""The state to resume training from: weights, their average, the optimiser's moments, the step.

It is one safetensors file, replaced atomically, so that an interruption during a write loses nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

Network = TypeVar("Network", bound=torch.nn.Module)


class Average:
    """The moving average of a network's weights. It follows faster in the beginning."""

    def __init__(self, network: torch.nn.Module, decay: float) -> None:
        self._decay = decay
        self.weights = {name: value.detach().clone() for name, value in network.state_dict().items()}

    @torch.no_grad()
    def follow(self, network: torch.nn.Module, step: int) -> None:
        """Adds the weights after a step to the average; the first step is 0."""
        share = 1 - min(self._decay, (1 + step) / (10 + step))
        mine, others = list(self.weights.values()), list(network.state_dict().values())
        torch._foreach_lerp_(mine, others, share)


def save(path: Path, step: int, network: torch.nn.Module, average: Average, optimizer: torch.optim.Optimizer) -> None:
    """Writes the state after `step` steps and replaces the previous file."""
    state = {f"network.{name}": value for name, value in network.state_dict().items()}
    state |= {f"average.{name}": value for name, value in average.weights.items()}
    for index, moments in optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
    fresh = path.with_suffix(".partial")
    save_file({name: value.contiguous() for name, value in state.items()}, fresh, metadata={"step": str(step)})
    fresh.replace(path)


def load(path: Path, network: torch.nn.Module, average: Average, optimizer: torch.optim.Optimizer) -> int:
    """Restores the state and returns the number of completed steps; 0 if the file does not exist."""
    if not path.exists():
        return 0
    moments: dict[int, dict[str, Tensor]] = {}
    weights: dict[str, Tensor] = {}
    with safe_open(path, framework="pt") as file:
        step = int(file.metadata()["step"])
        for key in file.keys():  # noqa: SIM118 (it is no mapping)
            kind, _, name = key.partition(".")
            if kind == "network":
                weights[name] = file.get_tensor(key)
            elif kind == "average":
                average.weights[name].copy_(file.get_tensor(key))
            else:
                index, _, moment = name.partition(".")
                moments.setdefault(int(index), {})[moment] = file.get_tensor(key)
    network.load_state_dict(weights)
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    return step


def averaged(path: Path, network: Network) -> Network:
    """Loads the average of a checkpoint into the network and returns it. Raises FileNotFoundError."""
    with safe_open(path, framework="pt") as file:
        names = [key for key in file.keys() if key.startswith("average.")]  # noqa: SIM118 (it is no mapping)
        weights = {name.removeprefix("average."): file.get_tensor(name) for name in names}
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False)
