"""The comparison of two servers in one run: medians over the rounds, their ratios, and our targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.level import LevelResult
from bench.prompts import PromptSet
from bench.row import Row, counted

TTFT_FACTOR, TTFT_SLACK_MS = 1.05, 10.0  # how much later than the peer's the first token may come
_TARGET_ALONE, _TARGET_TOGETHER = 0.97, 1.0
EVEN = 3.0  # most that the p95 of our gaps may be of their median
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Case:
    """One case of the comparison: a model's precision, a prompt set, a number of clients."""

    precision: str
    prompt_set: PromptSet
    concurrency: int

    @property
    def target(self) -> float:
        """The lowest acceptable ratio of tokens/s."""
        alone = self.concurrency == 1 and self.prompt_set is not PromptSet.SHARED
        return _TARGET_ALONE if alone else _TARGET_TOGETHER


@dataclass(frozen=True, slots=True)
class Figures:
    """The medians of one server's rounds."""

    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    gap_p50_ms: float
    gap_p95_ms: float
    gap_max_ms: float
    cached_tokens: float
    cpu_ms_per_token: float
    spread_percent: float  # from the slowest to the fastest round, relative to the median tokens/s
    errors: int
    idle_mib: float = 0.0  # of the process with the model, after one answer
    loaded_mib: float = 0.0  # the same, after the load

    @classmethod
    def of(cls, results: Sequence[LevelResult], memory: Sequence[tuple[int, int]] = ((0, 0),)) -> Figures:
        """Computes the medians of a server's results in one case. `memory`: bytes before and after each."""

        def middle(values: Iterable[float]) -> float:
            return float(median(list(values)))

        speeds = [result.tokens_per_s for result in results]
        return cls(
            tokens_per_s=middle(speeds),
            ttft_p50_ms=middle(result.ttft_ms.p50 for result in results),
            ttft_p95_ms=middle(result.ttft_ms.p95 for result in results),
            gap_p50_ms=middle(result.gap_ms.p50 for result in results),
            gap_p95_ms=middle(result.gap_ms.p95 for result in results),
            gap_max_ms=middle(result.gap_ms.max for result in results),
            cached_tokens=middle(result.cached_tokens for result in results),
            cpu_ms_per_token=middle(result.server_cpu_ms_per_token for result in results),
            spread_percent=100 * (max(speeds) - min(speeds)) / middle(speeds) if any(speeds) else 0.0,
            errors=sum(sum(result.errors.values()) for result in results),
            idle_mib=middle(idle / MIB for idle, _ in memory),
            loaded_mib=middle(loaded / MIB for _, loaded in memory),
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """allm and a peer in one case."""

    case: Case
    setting: str  # the peer's best setting
    ours: Figures  # as installed
    peer: Figures
    tuned: Figures | None = None  # ours with the peer's context, batch and number of clients

    @property
    def speed(self) -> float:
        """Our tokens/s over the peer's; higher is better."""
        return _ratio(self.ours.tokens_per_s, self.peer.tokens_per_s)

    @property
    def first_token(self) -> float:
        """Our median time to first token over the peer's; lower is better."""
        return _ratio(self.ours.ttft_p50_ms, self.peer.ttft_p50_ms)

    @property
    def gap(self) -> float:
        """Our median gap between tokens over the peer's; lower is better."""
        return _ratio(self.ours.gap_p50_ms, self.peer.gap_p50_ms)

    @property
    def tuned_speed(self) -> float:
        """The tokens/s of the tuned allm over the peer's."""
        return _ratio(self.tuned.tokens_per_s, self.peer.tokens_per_s) if self.tuned else float("nan")

    @property
    def evenness(self) -> float:
        """The p95 of our gaps over their median; lower is better."""
        return _ratio(self.ours.gap_p95_ms, self.ours.gap_p50_ms)

    @property
    def fast_enough(self) -> bool:
        return self.speed >= self.case.target and not self.ours.errors

    @property
    def prompt_enough(self) -> bool:
        """True if the first token is within the bound: 5% + 10 ms."""
        return self.ours.ttft_p50_ms <= self.peer.ttft_p50_ms * TTFT_FACTOR + TTFT_SLACK_MS


def rows(comparisons: Iterable[Comparison]) -> list[Row]:
    """Returns the figures of the comparisons that have a bar."""
    found: list[Row] = []
    for one in comparisons:
        case, ours, peer = one.case, one.ours, one.peer
        label = f"{case.precision}, {case.prompt_set} prompts, {counted(case.concurrency, 'client')}"
        name = f"llama-server, {one.setting}"
        found.append(Row(label, "tokens/s", ours.tokens_per_s, peer.tokens_per_s, name, case.target))
        if case.prompt_set is PromptSet.SHARED:
            found.append(Row(label, "first token, ms", ours.ttft_p50_ms, peer.ttft_p50_ms, name, 1.0, at_most=True))
        found.append(Row(label, "gap p95, ms", ours.gap_p95_ms, ours.gap_p50_ms, "its median", EVEN, at_most=True))
        found.append(Row(label, "memory under load, MiB", ours.loaded_mib, peer.loaded_mib, name, 1.0, at_most=True))
    return found


def _ratio(ours: float, peer: float) -> float:
    return ours / peer if peer else float("nan")


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Formats the comparisons as a Markdown table; timings and memory are ratios to the peer in the same run."""
    lines = [
        "allm as installed, without one variable set, beside llama-server's best setting. `tuned`: allm with"
        " llama-server's context, batch and number of clients. `p95/p50`: of allm's own gaps between tokens.",
        "",
        "| weights | prompts | clients | tokens/s | tuned | first token | gap p50 | gap p95 | p95/p50 | CPU per token"
        " | memory idle | loaded | peer's setting |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for one in comparisons:
        case, ours, peer = one.case, one.ours, one.peer
        cells = [
            case.precision,
            case.prompt_set,
            str(case.concurrency),
            f"{one.speed:.2f}x{'' if one.fast_enough else f' (target {case.target:g}x)'}",
            f"{one.tuned_speed:.2f}x" if one.tuned else "",
            f"{one.first_token:.2f}x{'' if one.prompt_enough else ' (over the bound)'}",
            f"{one.gap:.2f}x",
            f"{_ratio(ours.gap_p95_ms, peer.gap_p95_ms):.2f}x",
            f"{one.evenness:.1f}{'' if not one.evenness > EVEN else f' (bound {EVEN:g})'}",
            f"{_ratio(ours.cpu_ms_per_token, peer.cpu_ms_per_token):.2f}x",
            f"{ours.idle_mib:.0f} MiB",
            f"{_ratio(ours.loaded_mib, peer.loaded_mib):.2f}x",
            one.setting,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
