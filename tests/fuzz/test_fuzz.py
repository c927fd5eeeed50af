"""The short form of fuzzing: the whole kept corpus, and a few hundred mutations of it for each parser. The cases are
always the same; `make fuzz` searches for new ones.
"""

from __future__ import annotations

import pytest

from tests.fuzz.all_targets import TARGETS
from tests.fuzz.fuzz_target import CORPUS
from tests.fuzz.replay import Replay, replay

pytestmark = pytest.mark.slow

ALONE = [name for name, target in TARGETS.items() if not target.children]
APART = [name for name, target in TARGETS.items() if target.children]


@pytest.fixture(scope="module")
def found() -> Replay:
    """The findings in all parsers without child processes; one process for all of them saves imports."""
    return replay(ALONE)


@pytest.mark.parametrize("name", ALONE)
def test_nothing_is_found_in(name: str, found: Replay) -> None:
    assert not [finding for finding in found.findings if finding.target == name]
    assert name in found.ended, "it was reached"
    assert found.ended[name] >= TARGETS[name].cases


@pytest.mark.parametrize("name", APART)
def test_nothing_is_found_behind_a_process_of(name: str) -> None:
    found = replay([name])
    assert not found.findings
    assert found.ended[name] >= TARGETS[name].cases


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == TARGETS.keys()
    for target in TARGETS.values():
        assert target.corpus
        assert all(path.stat().st_size <= target.longest for path in target.corpus)
