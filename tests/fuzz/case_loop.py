"""Runs the corpus of targets and mutations of it. Prints a JSON line for every finding and for each target."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from tests.fuzz.case_guard import CaseGuard
from tests.fuzz.case_mutator import Mutator
from tests.fuzz.fuzz_target import SLOW, FuzzTarget

MOST_FINDINGS = 3  # per target: further ones are mostly the same


def go_through(targets: Sequence[FuzzTarget], guard: CaseGuard, count: int, seed: str) -> None:
    """Runs the corpus of each target and mutations of it, and prints the findings."""
    if not any(target.children for target in targets):
        guard.limit()
    for target in targets:
        print(json.dumps({"target": target.name, "begun": True}), flush=True)
        _go_through(target, guard, count or target.cases, seed)


def _go_through(target: FuzzTarget, guard: CaseGuard, count: int, seed: str) -> None:
    kept = {path.name: path.read_bytes() for path in target.corpus}
    findings = 0
    for name, case in kept.items():
        findings += _tell(target, name, case, guard.fault(target, case))
    mutator = Mutator(f"{seed} {target.name}", target.words, target.longest)
    cases = [case for name, case in kept.items() if not name.startswith(SLOW)] or [b""]
    ran = 0
    while ran < count and findings < MOST_FINDINGS:
        case = mutator.mutated(mutator.choose(cases), mutator.choose(cases))
        findings += _tell(target, "", case, guard.fault(target, case))
        ran += 1
    print(json.dumps({"target": target.name, "kept": len(kept), "mutated": ran}), flush=True)


def _tell(target: FuzzTarget, name: str, case: bytes, fault: str) -> int:
    if not fault:
        return 0
    reported = {"target": target.name, "file": name, "fault": fault, "case": base64.b64encode(case).decode()}
    print(json.dumps(reported), flush=True)
    return 1
