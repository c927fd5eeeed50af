"""The training loop of all three stages: learning rates, averages, checkpoints, and progress output.

A step depends only on the seed and the step number, never on earlier work of the process, so an interrupted and
resumed training ends in the same weights, bit for bit, on the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

from training.shapes_sd.checkpoint import Average, load, save

THREADS = 1  # another number changes the order of sums; two threads block each other on a busy machine
LINE_SECONDS = 45.0
SAVE_SECONDS = 180.0


@dataclass(frozen=True)
class Plan:
    """The training schedule. The rate rises over `warmup` steps, and falls to zero from `falls_from` on (a fraction of
    all steps)."""

    name: str
    seed: int
    steps: int
    rate: float
    falls_from: float
    decay: float
    warmup: int = 50

    def rate_at(self, step: int) -> float:
        """Returns the learning rate of a step; the first is 0."""
        left = (self.steps - step) / (self.steps * (1 - self.falls_from))
        return self.rate * min(1.0, (step + 1) / self.warmup, left)


def settle() -> None:
    """Makes torch deterministic. Call it once, before anything else."""
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # no code here reads it, and filling takes time


def step_rng(plan: Plan, step: int) -> numpy.random.Generator:
    """Returns the random generator of one step."""
    return numpy.random.default_rng((plan.seed, step))


def train(plan: Plan, network: torch.nn.Module, loss_of: Callable[[int], torch.Tensor], state: Path) -> Path:
    """Trains from the last checkpoint on; returns the final checkpoint in `state`, named after the plan."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=plan.rate, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    average = Average(network, plan.decay)
    path = state / f"{plan.name}.safetensors"
    first = load(path, network, average, optimizer)
    network.train()
    started = reported = saved = time.monotonic()
    losses: list[float] = []
    for step in range(first, plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate_at(step)
        loss = loss_of(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        average.follow(network, step)
        losses.append(loss.item())
        now = time.monotonic()
        if now - reported > LINE_SECONDS or step + 1 == plan.steps or step == first:
            left = (now - started) / (step + 1 - first) * (plan.steps - step - 1)
            _tell(f"{plan.name}: step {step + 1} of {plan.steps}, loss {sum(losses) / len(losses):.4f}", left)
            reported, losses = now, []
        if now - saved > SAVE_SECONDS or step + 1 == plan.steps:
            save(path, step + 1, network, average, optimizer)
            saved = time.monotonic()
    return path


def _tell(line: str, left: float) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}, {left / 60:.1f} minutes left", flush=True)
