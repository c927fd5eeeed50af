"""Kept prefixes: whose they are, which one is found, which one goes."""

import random

import pytest

from services.text.engine.cells import BLOCK, CellLedger, Holding
from services.text.engine.prefix import Entry, PrefixCache, common_blocks


class Kept:
    """A cache with a ledger, and a list of the sequence ids that it dropped."""

    def __init__(self, entries: int = 4, cells: int = 1000) -> None:
        self.ledger = CellLedger(2000)
        self.dropped: list[int] = []
        self.cache = PrefixCache(self.ledger, entries, cells, self.dropped.append)

    def keep(self, client: str, tokens: list[int], sequence: int) -> None:
        holding = Holding()
        self.ledger.grow(holding, len(tokens))
        self.cache.keep(Entry(client, tokens, sequence, self.ledger.keep(holding)))


def test_common_blocks_equals_counting() -> None:
    rng = random.Random(1)  # noqa: S311
    for _ in range(300):
        left = [rng.randrange(2) for _ in range(rng.randrange(80))]
        right = left[: rng.randrange(len(left) + 1)] + [rng.randrange(2) for _ in range(rng.randrange(40))]
        same = 0
        while same < min(len(left), len(right)) and left[same] == right[same]:
            same += 1
        assert common_blocks(left, right) == same // BLOCK * BLOCK


def test_the_longest_prefix_of_the_same_client_is_found() -> None:
    kept = Kept()
    kept.keep("a", [1] * BLOCK, 1)
    kept.keep("b", [1] * 3 * BLOCK, 2)
    kept.keep("a", [1] * BLOCK + [2] * BLOCK, 3)
    found = kept.cache.find("a", [1] * BLOCK + [2] * BLOCK + [3])
    assert found
    assert (found[0].id, found[1]) == (3, 2 * BLOCK)
    assert kept.cache.find("c", [1] * BLOCK) is None


def test_an_entry_that_another_covers_goes() -> None:
    kept = Kept()
    kept.keep("a", [1] * BLOCK, 1)
    kept.keep("a", [1] * 2 * BLOCK, 2)
    assert kept.dropped == [1]
    kept.keep("a", [1] * BLOCK, 3)
    assert kept.dropped == [1, 3]
    assert kept.ledger.cached == 2 * BLOCK


def test_the_least_recently_used_goes_first() -> None:
    kept = Kept(entries=2)
    kept.keep("a", [1] * BLOCK, 1)
    kept.keep("a", [2] * BLOCK, 2)
    kept.cache.find("a", [1] * BLOCK)
    kept.keep("a", [3] * BLOCK, 3)
    assert kept.dropped == [2]


def test_taking_prefers_the_entry_that_goes_on_and_counts_single_tokens() -> None:
    kept = Kept()
    kept.keep("a", [1] * 2 * BLOCK, 1)
    kept.keep("a", [2] * 2 * BLOCK, 2)
    taken = kept.cache.take("a", [2] * (BLOCK + 5) + [3])
    assert taken
    assert (taken[0].id, taken[1]) == (2, BLOCK + 5)
    taken = kept.cache.take("b", [1] * 2 * BLOCK)
    assert taken
    assert (taken[0].id, taken[1]) == (1, 0), "another client's tokens are not for reuse"
    assert kept.cache.take("a", [1]) is None
    assert kept.ledger.cached == 0


@pytest.mark.parametrize("cells", [0, 3 * BLOCK])
def test_the_bound_on_cells_holds(cells: int) -> None:
    kept = Kept(entries=100, cells=cells)
    for number in range(10):
        kept.keep("a", [number] * BLOCK, number)
        assert kept.ledger.cached <= cells
