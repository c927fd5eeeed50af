"""A test of fuzzing itself: it finds every kind of planted fault, and reports its case."""

from __future__ import annotations

import pytest

from tests.fuzz.case_mutator import Mutator
from tests.fuzz.replay import replay

PLANTED = "tests.fuzz.planted_faults"


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("raises", "KeyError: 'a bug'"),
        ("hangs", "longer than 0.5 seconds"),
        ("hangs-deaf", "the process ended"),
        ("fills-memory", "bytes of memory"),
        ("fills-all-memory", "MemoryError"),
        ("crashes", "the process ended: exit code -11"),
    ],
)
def test_a_planted_fault_is_found(name: str, reported: str) -> None:
    finding = replay([name], module=PLANTED).findings[0]
    assert finding.target == name
    assert reported in finding.fault
    mutator = Mutator(f"allm {name}")
    assert finding.case == mutator.mutated(mutator.choose([b""]), mutator.choose([b""]))


def test_declared_exceptions_are_not_findings() -> None:
    found = replay(["refuses"], module=PLANTED)
    assert not found.findings
    assert found.ended == {"refuses": 5}


def test_the_same_seed_makes_the_same_cases_and_none_is_too_long() -> None:
    cases = [b'{"a": [1, 2.5, "x"]}', b"RIFF\x00\x00\x00\x00WAVE"]
    first, second = Mutator("seed", longest=100), Mutator("seed", longest=100)
    made = [first.mutated(first.choose(cases), cases[1]) for _ in range(500)]
    assert made == [second.mutated(second.choose(cases), cases[1]) for _ in range(500)]
    assert len(set(made)) > 300
    assert all(len(case) <= 100 for case in made)
