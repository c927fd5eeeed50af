"""Runs targets in a separate process and reads the findings, also when a case has ended the process."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.case_guard import case_in

ROOT = Path(__file__).parents[2]
SECONDS = 600.0  # time limit of a process: a blocked one is a finding, too


@dataclass(frozen=True)
class Finding:
    """A case that a target handles wrongly."""

    target: str
    file: str  # in the corpus; empty: a new case
    fault: str
    case: bytes


@dataclass
class Replay:
    """The result of a run."""

    findings: list[Finding] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)  # completed targets: the number of new cases


def replay(
    names: Sequence[str], *, count: int = 0, seed: str = "allm", module: str = "tests.fuzz.cases_child"
) -> Replay:
    """Runs the corpus of some targets, and `count` mutations of it (0: each target's own number)."""
    with tempfile.TemporaryDirectory() as folder:
        now = Path(folder) / "case"
        command = [sys.executable, "-m", module, str(now), str(count), seed, *names]
        environ = {**os.environ, "TMPDIR": folder}  # a killed process does not clean up
        with subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            try:
                reported, errors = child.communicate(timeout=SECONDS)
                how = f"exit code {child.returncode}" if child.returncode else ""
            except subprocess.TimeoutExpired:
                child.kill()
                reported, errors = child.communicate()
                how = f"no end after {SECONDS:g} seconds"
        return _read(reported, how, errors, now)


def _read(reported: str, how: str, errors: str, now: Path) -> Replay:
    found, last = Replay(), ""
    for line in reported.splitlines():
        entry = json.loads(line)
        last = entry["target"]
        if "fault" in entry:
            case = base64.b64decode(entry["case"])
            found.findings.append(Finding(last, entry["file"], entry["fault"], case))
        if "mutated" in entry:
            found.ended[last] = entry["mutated"]
    if how:
        case = case_in(now) if now.exists() else b""
        found.findings.append(Finding(last, "", f"the process ended: {how}\n{errors[-2000:]}", case))
    return found
