"""A check of a model, its outcome, and the result of a run of checks as a document, for scripts and for the record."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from services.cli.models.page import format_word
from services.cli.problem import Problem
from services.cli.verify.subject import Subject

Verdict = Literal["passed", "failed", "skipped"]


class CheckFailed(Exception):
    """The model failed the check."""

    def __init__(self, seen: str, likely: str) -> None:
        super().__init__(seen)
        self.seen = seen  # the unexpected result
        self.likely = likely  # the likely cause, for the model's maintainer


class Skipped(Exception):
    """The check does not apply to this model; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One property of a model to check."""

    name: str
    compared: str  # the comparison that is made, with its thresholds
    run: Callable[[Subject], str]  # returns the observation; raises CheckFailed, Skipped or Problem
    sense: bool = False  # whether it is meaningful only for trained weights


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """The outcome of one check."""

    name: str
    verdict: Verdict
    compared: str
    seen: str
    likely: str = ""  # only if it failed
    seconds: float = 0.0


# Packages that answers depend on, as installed for this command, which is usually also the `allm serve` installation.
PACKAGES = {
    "allm": "allm-server",
    "torch": "torch",
    "transformers": "transformers",
    "llama-cpp-python": "llama-cpp-python",
}
LOCAL = "files of this machine"


def record(subject: Subject, outcomes: Sequence[CheckOutcome]) -> dict[str, Any]:
    """Returns the document. It contains no path of the machine."""
    model = subject.catalog.get(subject.model.id).model
    source = model.source if model.source.startswith("hf://") else LOCAL
    ran = next((each for each in model.replicas if each.runtime), None)
    return {
        "model": model.id,
        "architecture": model.architecture,
        "format": format_word(model.format),
        "quantization": model.quantization,
        "size_bytes": model.size_bytes,
        "source": f"{source}@{model.revision}" if model.revision and "@" not in source else source,
        "weights": "random" if subject.random else "real",
        "runtime": subject.runtime or (ran.runtime if ran else ""),  # the replica may have returned to its own
        "device": ran.device if ran else "",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "versions": {name: version for name, package in PACKAGES.items() if (version := _version(package))},
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "passed": not any(outcome.verdict == "failed" for outcome in outcomes),
        "checks": [dataclasses.asdict(outcome) for outcome in outcomes],
    }


def write(document: dict[str, Any], path: Path) -> None:
    """Writes it as JSON. Raises Problem if that fails."""
    try:
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise Problem(f"{path} cannot be written: {error.strerror}") from error


def file_name(result: Mapping[str, Any]) -> str:
    """Returns the file name of a document."""
    return f"{result['model'].replace('/', '_')}-{result['runtime'] or 'none'}-{result['device'] or 'none'}.json"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
