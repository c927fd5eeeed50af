"""The result of one turn of the image bench, and the table of all results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from statistics import median

from bench.image_pipeline import SIDE, Level, Plan, Timing
from bench.noise import Noise
from bench.row import Row, counted
from bench.run import machine

OURS = "allm"
TARGETS = {1: 0.95, 4: 1.0, 16: 1.0}  # ratios to the speed of the looped pipeline
TOGETHER = 0.95  # to that of the pipeline with all prompts in one call


@dataclass(frozen=True, slots=True)
class Entry:
    """The figures of one turn of one contender."""

    name: str
    round: int
    clients: int
    pictures: int
    wall_s: float
    latency_p50_s: float
    cpu_s: float
    steal_percent: float
    other_percent: float

    @classmethod
    def of(cls, name: str, number: int, level: Level, timing: Timing, noise: Noise) -> Entry:
        """Computes the figures of a turn."""
        return cls(
            name=name,
            round=number,
            clients=level.clients,
            pictures=len(level.seeds),
            wall_s=timing.wall_s,
            latency_p50_s=median(timing.latencies_s),
            cpu_s=noise.server_cpu_s,
            steal_percent=noise.steal_percent,
            other_percent=noise.other_percent,
        )

    @property
    def speed(self) -> float:
        """Images per second."""
        return self.pictures / self.wall_s

    @property
    def cpu(self) -> float:
        """CPU seconds per image."""
        return self.cpu_s / self.pictures

    @property
    def line(self) -> str:
        """The figures as a line for a terminal."""
        return (
            f"round {self.round + 1}  {self.clients:2} clients  {self.name:30} {self.speed:5.2f} images/s  "
            f"p50 {self.latency_p50_s:6.2f} s  {self.cpu:5.2f} CPU s/image  "
            f"others {self.other_percent:.0f}%, steal {self.steal_percent:.0f}%"
        )


def difference(one: Timing, other: Timing) -> int:
    """Returns the largest difference of a channel, out of 255, between the images that both generated."""
    pairs = zip(one.pictures, other.pictures, strict=False)
    return max((abs(a - b) for pair in pairs for a, b in zip(*pair, strict=True)), default=0)


def ratios(entries: Sequence[Entry], clients: int, name: str) -> tuple[float, float]:
    """Returns allm's speed over another's and the other's CPU time over allm's: medians of the rounds."""
    level = [entry for entry in entries if entry.clients == clients]
    ours = {entry.round: entry for entry in level if entry.name == OURS}
    pairs = [(ours[entry.round], entry) for entry in level if entry.name == name]
    speed = median(one.speed / other.speed for one, other in pairs)
    return speed, median(other.cpu / max(one.cpu, 1e-9) for one, other in pairs)


def rows(entries: Sequence[Entry]) -> list[Row]:
    """Returns images/s beside the pipeline's in a loop and, with several clients, with all prompts in one call."""
    found: list[Row] = []
    for clients, name in sorted({(entry.clients, entry.name) for entry in entries if entry.name != OURS}):
        ours, peer = (
            median(entry.speed for entry in entries if (entry.clients, entry.name) == (clients, who))
            for who in (OURS, name)
        )
        bar = TARGETS[clients] if name.endswith("loop") else TOGETHER
        found.append(Row(counted(clients, "client"), "images/s", ours, peer, name, bar))
    return found


def markdown(entries: Sequence[Entry], plan: Plan, differences: dict[int, int]) -> str:
    """Formats the medians as a table, with a description of the machine and the setup.

    `differences` holds, for each number of clients, the difference of the images from those of the looped pipeline.
    """
    about = machine()
    rounds = 1 + max(entry.round for entry in entries)
    versions = ", ".join(f"{name} {version(name)}" for name in ("diffusers", "torch"))
    lines = [
        f"shapes-sd, {SIDE}x{SIDE}, {plan.steps} steps, guidance {plan.guidance:g}, {plan.scheduler}, {plan.dtype}, "
        f"{plan.threads} compute threads each, {about['cores']} cores of {about['cpu']}, "
        f"{datetime.now(UTC):%Y-%m-%d}; medians of {rounds} rounds. {versions}. allm is asked over REST, through "
        "Envoy, and answers with PNG files; the pipeline is called in a process of its own, with one prompt after "
        "another in a loop, and once for comparison with as many prompts in a call as there are clients, all known "
        "beforehand. The ratio is the median of the rounds' ratios; in brackets that of CPU time.",
        "",
        "| clients | who | images/s | p50 | CPU s/image | allm's ratio | others' load |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for clients in sorted({entry.clients for entry in entries}):
        lines += _rows(entries, clients)
    found = ", ".join(f"{most} with {clients}" for clients, most in sorted(differences.items()))
    lines += ["", f"The greatest difference of a channel from the loop's pictures, of 255: {found} clients."]
    return "\n".join(lines) + "\n"


def _rows(entries: Sequence[Entry], clients: int) -> list[str]:
    level = [entry for entry in entries if entry.clients == clients]
    rows = []
    for name in dict.fromkeys(entry.name for entry in sorted(level, key=lambda entry: entry.name)):
        own = [entry for entry in level if entry.name == name]
        figures = [median(entry.speed for entry in own), median(entry.latency_p50_s for entry in own)]
        cpu = median(entry.cpu for entry in own)
        load = median(entry.other_percent + entry.steal_percent for entry in own)
        ratio = _ratio(entries, clients, name)
        rows.append(
            f"| {clients} | {name} | {figures[0]:.2f} | {figures[1]:.2f} s | {cpu:.2f} | {ratio} | {load:.0f}% |"
        )
    return rows


def _ratio(entries: Sequence[Entry], clients: int, name: str) -> str:
    if name == OURS:
        return ""
    speed, cpu = ratios(entries, clients, name)
    target = TARGETS.get(clients)
    missed = name.endswith("loop") and target is not None and speed < target
    return f"{speed:.2f}x ({cpu:.2f}x){f' (target {target:g}x)' if missed else ''}"
