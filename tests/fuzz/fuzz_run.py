"""The long form, `make fuzz`: all targets, or the named ones, for SECONDS each.

    python -m tests.fuzz.fuzz_run SECONDS [TARGET...]

Guided by coverage if atheris is installed and the target's code runs in this process; otherwise by our mutator alone.
Findings are printed and kept in the corpus, so that `make test-all` fails until they are fixed. Exits with the number
of targets with findings.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.all_targets import TARGETS
from tests.fuzz.fuzz_target import CORPUS, FuzzTarget
from tests.fuzz.replay import Replay, replay

ROOT = Path(__file__).parents[2]
GROWN = ROOT / ".venv" / "fuzz"  # cases that reach new code: a later run continues from them
CASE_SECONDS = 60  # of wall time; the guard's own limit, of processor time, is far shorter
MEMORY_MB = 3072
ROUND = 2000  # mutations of a target without coverage, between two checks of the clock


def main() -> int:
    """Runs the targets, and prints the findings."""
    seconds, names = float(sys.argv[1]), sys.argv[2:] or list(TARGETS)
    covered = importlib.util.find_spec("atheris") is not None
    found = 0
    for name in names:
        target = TARGETS[name]
        cases = _by_coverage(target, seconds) if covered and not target.children else _by_chance(target, seconds)
        kept = [_keep(target, case) for case in cases]
        found += bool(kept)
        print(f"{name}: {'nothing found' if not kept else 'found: ' + ', '.join(kept)}", flush=True)
    return found


def _by_coverage(target: FuzzTarget, seconds: float) -> Iterable[bytes]:
    grown = GROWN / target.name
    grown.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as findings, tempfile.TemporaryDirectory() as scratch:
        options = [f"-max_total_time={int(seconds)}", f"-artifact_prefix={findings}/", f"-timeout={CASE_SECONDS}"]
        options += [f"-rss_limit_mb={MEMORY_MB}", "-print_final_stats=1", "-verbosity=0", str(grown)]
        command = [sys.executable, "-m", "tests.fuzz.coverage_run", target.name, *options, str(CORPUS / target.name)]
        # libFuzzer ends the process without cleaning up.
        subprocess.run(command, check=False, cwd=ROOT, env={**os.environ, "TMPDIR": scratch})
        return [path.read_bytes() for path in sorted(Path(findings).iterdir())]


def _by_chance(target: FuzzTarget, seconds: float) -> Iterable[bytes]:
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        count = ROUND if not target.children else ROUND // 10
        reported: Replay = replay([target.name], count=count, seed=f"{time.time_ns()}")
        rounds += sum(reported.ended.values())
        if reported.findings:
            for finding in reported.findings:
                print(finding.fault, flush=True)
            return [finding.case for finding in reported.findings]
    print(f"{target.name}: {rounds} cases", flush=True)
    return []


def _keep(target: FuzzTarget, case: bytes) -> str:
    name = f"found-{hashlib.sha256(case).hexdigest()[:12]}"
    (CORPUS / target.name / name).write_bytes(case)
    return name


if __name__ == "__main__":
    sys.exit(main())
