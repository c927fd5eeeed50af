"""The result of one turn of the transcription bench, and the table of all results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from statistics import median

from bench.audio_library import Level, Library, Plan, Timing
from bench.audio_material import LONG, recording, word_errors
from bench.noise import Noise
from bench.row import Row, counted
from bench.run import machine

OURS = "allm"
TARGETS = {1: 0.95, 4: 1.5, 16: 1.5}  # times the best library's speed


@dataclass(frozen=True, slots=True)
class Entry:
    """The figures of one turn of one contender."""

    name: str
    library: str  # "" for allm
    round: int  # -1 in a trial of the libraries
    clients: int
    long: bool
    clips: int  # for the encoder: windows
    sound_s: float
    wall_s: float
    latency_p50_s: float
    cpu_s: float
    steal_percent: float
    other_percent: float
    wrong_percent: float  # of the words

    @classmethod
    def of(cls, name: str, number: int, level: Level, timing: Timing, noise: Noise, plan: Plan | None) -> Entry:
        """Computes the figures of a turn."""
        encoder = plan is not None and plan.library is Library.ENCODER
        clips = [recording(clip) for clip in level.clips]
        texts = zip((clip.transcript for clip in clips), timing.texts, strict=True)
        windows = len(clips) * plan.batch if plan and encoder else len(clips)
        return cls(
            name=name,
            library=str(plan.library) if plan else "",
            round=number,
            clients=level.clients,
            long=LONG in level.clips,
            clips=windows,
            sound_s=windows * plan.columns / 100 if plan and encoder else sum(clip.seconds for clip in clips),
            wall_s=timing.wall_s,
            latency_p50_s=median(timing.latencies_s),
            cpu_s=noise.server_cpu_s,
            steal_percent=noise.steal_percent,
            other_percent=noise.other_percent,
            wrong_percent=0.0 if encoder else word_errors(texts),
        )

    @property
    def speed(self) -> float:
        """Seconds of sound per second: the factor over real time."""
        return self.sound_s / self.wall_s

    @property
    def line(self) -> str:
        """The figures as a line for a terminal."""
        when = "trial  " if self.round < 0 else f"round {self.round + 1}"
        return (
            f"{when}  {self.clients:2} clients  {self.name:45} {self.speed:6.1f}x  {self.clips / self.wall_s:6.2f} "
            f"clips/s  p50 {self.latency_p50_s:5.2f} s  {60 * self.cpu_s / self.sound_s:5.2f} CPU s/min  "
            f"{self.wrong_percent:4.1f}% wrong  others {self.other_percent:.0f}%, steal {self.steal_percent:.0f}%"
        )


def markdown(entries: Sequence[Entry], threads: int, compute_type: str, *, vad: bool) -> str:
    """Formats the medians as a table, with a description of the machine and the setup."""
    about = machine()
    measured = [entry for entry in entries if entry.round >= 0]
    rounds = 1 + max(entry.round for entry in measured)
    versions = ", ".join(f"{name} {version(name)}" for name in ("faster-whisper", "ctranslate2", "openai-whisper"))
    lines = [
        f"whisper-tiny.en, {compute_type} (openai-whisper: float32), beam 5, voice activity detection "
        f"{'on (openai-whisper has none)' if vad else 'off'}, {threads} compute threads each, {about['cores']} cores "
        f"of {about['cpu']}, {datetime.now(UTC):%Y-%m-%d}; medians of {rounds} rounds. {versions}. Speed: seconds of "
        "sound a second. The ratio is the median of the rounds' ratios; in brackets that of CPU time.",
        "",
        "| clients | who | speed | clips/s | CPU s/min of sound | allm's ratio | words wrong | others' load |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    speech = [entry for entry in measured if entry.library != Library.ENCODER]
    for clients in sorted({entry.clients for entry in speech if not entry.long}):
        level = [entry for entry in speech if entry.clients == clients and not entry.long]
        lines += _rows(str(clients), level, TARGETS.get(clients))
    lines += _rows("1, ten minutes", [entry for entry in speech if entry.long], None)
    return "\n".join([*lines, "", *_floor(measured)]) + "\n"


def rows(entries: Sequence[Entry]) -> list[Row]:
    """Returns the figures that have a bar, each beside the best library's at that number of clients."""
    found: list[Row] = []
    for clients, target in TARGETS.items():
        level = [one for one in entries if one.round >= 0 and one.clients == clients and not one.long]
        medians = {name: _median(level, name) for name in {entry.name for entry in level}}
        ours = medians.pop(OURS)
        case = counted(clients, "client")
        best = max(medians, key=lambda name: medians[name].speed)
        found.append(Row(case, "seconds of sound a second", ours.speed, medians[best].speed, best, target))
        best = min(medians, key=lambda name: medians[name].wrong)
        found.append(Row(case, "wrong words, %", ours.wrong, medians[best].wrong, best, 1.0, at_most=True))
    return found


def _rows(what: str, level: Sequence[Entry], target: float | None) -> list[str]:
    names = sorted({entry.name for entry in level}, key=lambda name: -_median(level, name).speed)
    best = next((name for name in names if name != OURS), "")
    rows = []
    for name in [name for name in (OURS,) if name in names] + [name for name in names if name != OURS]:
        one, ratio = _median(level, name), ""
        if name != OURS and OURS in names:
            speed, cpu = _ratios(level, name)
            missed = name == best and target is not None and speed < target
            ratio = f"{speed:.2f}x ({cpu:.2f}x){f' (target {target:g}x)' if missed else ''}"
        rows.append(
            f"| {what} | {name} | {one.speed:.1f} | {one.clips_per_s:.2f} | {one.cpu:.2f} "
            f"| {ratio} | {one.wrong:.1f}% | {one.others:.0f}% |"
        )
    return rows


@dataclass(frozen=True, slots=True)
class _Median:
    speed: float
    clips_per_s: float
    cpu: float  # seconds per minute of sound
    wrong: float
    others: float


def _median(level: Sequence[Entry], name: str) -> _Median:
    own = [entry for entry in level if entry.name == name]
    return _Median(
        speed=median(entry.speed for entry in own),
        clips_per_s=median(entry.clips / entry.wall_s for entry in own),
        cpu=median(60 * entry.cpu_s / entry.sound_s for entry in own),
        wrong=median(entry.wrong_percent for entry in own),
        others=median(entry.other_percent + entry.steal_percent for entry in own),
    )


def _ratios(level: Sequence[Entry], name: str) -> tuple[float, float]:
    """Returns allm's speed over another's and the other's CPU time over allm's: medians of the rounds."""
    ours = {entry.round: entry for entry in level if entry.name == OURS}
    pairs = [(ours[entry.round], entry) for entry in level if entry.name == name and entry.round in ours]
    speed = median(one.speed / other.speed for one, other in pairs)
    cpu = median((other.cpu_s / other.sound_s) / max(one.cpu_s / one.sound_s, 1e-9) for one, other in pairs)
    return speed, cpu


def _floor(measured: Sequence[Entry]) -> list[str]:
    """Returns the lines on the encoder alone: its cost, the best way to call it, the bound that it sets."""
    encoders = [entry for entry in measured if entry.library == Library.ENCODER]
    lines = []
    for seconds in sorted({round(entry.sound_s / entry.clips) for entry in encoders}, reverse=True):
        same = [entry for entry in encoders if round(entry.sound_s / entry.clips) == seconds]
        best = max({entry.name for entry in same}, key=lambda name: _median(same, name).clips_per_s)
        one = _median(same, best)
        lines.append(
            f"The encoder alone, windows of {seconds} s: {one.clips_per_s:.1f} windows/s ({best}), "
            f"{one.cpu * seconds / 60 * 1000:.0f} ms of CPU for a window. Whoever encodes one for each clip and does "
            f"nothing else is {_permitted(measured, one.clips_per_s)} as fast as the best library."
        )
    return lines


def _permitted(measured: Sequence[Entry], windows_per_s: float) -> str:
    """Compares `windows_per_s` with the best library's clips per second, at each concurrency."""
    others = [entry for entry in measured if entry.library not in (Library.ENCODER, "") and not entry.long]
    speeds = []
    for clients in sorted({entry.clients for entry in others}):
        level = [entry for entry in others if entry.clients == clients]
        best = max(_median(level, name).clips_per_s for name in {entry.name for entry in level})
        speeds.append(f"{windows_per_s / best:.1f}x ({clients} client{'s' if clients > 1 else ''})")
    return ", ".join(speeds)
