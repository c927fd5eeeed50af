"""Kept prefixes: ownership, lookup and eviction."""

import random

import pytest

from services.text.engine.kv_cells import BLOCK, CellLedger, Holding
from services.text.engine.prefix import KeptPrefix, PrefixCache, StateCache, common_blocks


class Kept:
    """A prefix cache with a ledger and a list of the sequence ids that it dropped."""

    def __init__(self, entries: int = 4, cells: int = 1000) -> None:
        self.ledger = CellLedger(2000)
        self.dropped: list[int] = []
        self.cache = PrefixCache(self.ledger, entries, cells, self.dropped.append)

    def keep(self, client: str, tokens: list[int], sequence: int, key: str = "") -> None:
        holding = Holding()
        self.ledger.grow(holding, len(tokens))
        self.cache.keep(KeptPrefix(client, tokens, sequence, self.ledger.keep(holding), {key} if key else set()))

    def has(self, client: str, tokens: list[int]) -> bool:
        found = self.cache.find(client, tokens)
        return found is not None and found[1] == len(tokens)

    def take(self, sequence: int, client: str, tokens: list[int], key: str = "") -> int:
        entry = self.cache.at(sequence)
        assert entry
        return self.cache.take(entry, client, tokens, key)


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


def test_a_request_takes_the_entry_that_it_continues_and_counts_single_tokens() -> None:
    kept = Kept()
    kept.keep("a", [1] * 2 * BLOCK, 1)
    kept.keep("a", [2] * 2 * BLOCK, 2)
    assert kept.take(1, "b", [1] * 2 * BLOCK) == 0, "another client's tokens are not for reuse"
    assert kept.take(1, "a", [2] * 2 * BLOCK) == 0, "the other entry has more of it"
    assert kept.take(2, "a", [2] * (BLOCK - 1)) == 0, "most of the entry would be lost"
    assert kept.ledger.cached == 4 * BLOCK
    assert kept.take(2, "a", [2] * (BLOCK + 5) + [3]) == BLOCK + 5
    assert kept.ledger.cached == 2 * BLOCK
    assert kept.cache.at(2) is None


def test_an_entry_that_moves_keeps_its_place_in_the_order() -> None:
    kept = Kept(entries=3)
    for number in (1, 2, 3):
        kept.keep("a", [number] * BLOCK, number)
    kept.cache.move(kept.cache.at(1), 7)
    kept.keep("a", [4] * BLOCK, 4)
    assert kept.dropped == [7]
    assert not kept.cache.evict(spared=2), "the next one is spared"
    assert kept.cache.evict(spared=3)


@pytest.mark.parametrize("cells", [0, 3 * BLOCK])
def test_the_bound_on_cells_holds(cells: int) -> None:
    kept = Kept(entries=100, cells=cells)
    for number in range(10):
        kept.keep("a", [number] * BLOCK, number)
        assert kept.ledger.cached <= cells


# --- sessions with a key


def test_an_entry_with_a_key_outlives_those_without() -> None:
    kept = Kept(entries=4)
    kept.keep("a", [1] * BLOCK, 1, "session")
    for number in range(2, 50):
        kept.keep("a", [number] * BLOCK, number)
    assert kept.has("a", [1] * BLOCK)
    assert 1 not in kept.dropped
    assert len(kept.cache) == 4


def test_the_bound_on_cells_spares_it_too() -> None:
    kept = Kept(entries=100, cells=8 * BLOCK)
    kept.keep("a", [1] * 4 * BLOCK, 1, "session")
    for number in range(2, 50):
        kept.keep("a", [number] * BLOCK, number)
    assert kept.has("a", [1] * 4 * BLOCK)
    assert kept.ledger.cached <= 8 * BLOCK


def test_a_session_has_one_entry_and_the_newest_replaces_it() -> None:
    kept = Kept(entries=10)
    kept.keep("a", [1] * 2 * BLOCK, 1, "session")
    kept.keep("a", [1] * BLOCK + [2] * BLOCK, 2, "session")
    assert kept.dropped == [1]
    kept.keep("b", [1] * BLOCK + [3] * BLOCK, 3, "session")
    kept.keep("a", [1] * BLOCK + [4] * BLOCK, 4, "another")
    assert kept.dropped == [1], "another client's session of that name is another session"
    assert kept.ledger.cached == 6 * BLOCK


def test_a_key_goes_over_to_what_covers_its_prefix() -> None:
    for first, second in (("session", ""), ("", "session")):
        kept = Kept(entries=2)
        kept.keep("a", [1] * BLOCK, 1, first)
        kept.keep("a", [1] * 2 * BLOCK, 2, second)
        for number in range(3, 20):
            kept.keep("a", [number] * BLOCK, number)
        assert kept.has("a", [1] * 2 * BLOCK), (first, second)
    kept = Kept(entries=2)
    kept.keep("a", [1] * 2 * BLOCK, 1)
    kept.keep("a", [1] * BLOCK, 2, "session")
    for number in range(3, 20):
        kept.keep("a", [number] * BLOCK, number)
    assert kept.has("a", [1] * 2 * BLOCK), "what is longer serves the session as well"


def test_sessions_that_began_alike_share_an_entry_until_they_part() -> None:
    kept = Kept(entries=20)
    kept.keep("a", [1] * BLOCK, 1, "first")
    kept.keep("a", [1] * BLOCK, 2, "second")
    kept.keep("a", [1] * BLOCK + [2] * BLOCK, 3, "first")
    kept.keep("a", [1] * BLOCK + [3] * BLOCK, 4, "second")
    assert kept.has("a", [1] * BLOCK + [2] * BLOCK)
    assert kept.has("a", [1] * BLOCK + [3] * BLOCK)
    assert len(kept.cache) == 2


@pytest.mark.parametrize(("entries", "cells"), [(8, 1000), (100, 8 * BLOCK)])
def test_those_with_a_key_hold_no_more_than_a_half(entries: int, cells: int) -> None:
    kept = Kept(entries=entries, cells=cells)
    for number in range(30):
        kept.keep("a", [number] * BLOCK, number, f"session {number}")
        keyed = [entry for entry in kept.cache._entries.values() if entry.keys]
        assert len(keyed) <= 4
    assert kept.has("a", [29] * BLOCK)
    for number in range(30, 60):
        kept.keep("a", [number] * BLOCK, number)
    assert [kept.has("a", [number] * BLOCK) for number in range(25, 30)] == [False, True, True, True, True]


def test_one_that_is_larger_than_the_share_is_like_any_other() -> None:
    kept = Kept(cells=8 * BLOCK)
    kept.keep("a", [1] * 6 * BLOCK, 1, "session")
    assert kept.has("a", [1] * 6 * BLOCK)
    kept.keep("a", [2] * 4 * BLOCK, 2)
    assert kept.dropped == [1]


def test_requests_get_cells_of_sessions_too() -> None:
    kept = Kept()
    kept.keep("a", [1] * BLOCK, 1, "session")
    kept.keep("a", [2] * BLOCK, 2)
    assert kept.cache.evict()
    assert kept.dropped == [2]
    assert kept.cache.evict()
    assert kept.dropped == [2, 1]
    assert not kept.cache.evict()
    assert kept.ledger.cached == 0


def test_a_session_is_not_taken_by_another_request() -> None:
    tokens = [1] * 4 * BLOCK
    kept = Kept()
    kept.keep("a", tokens, 1, "session")
    assert kept.take(1, "a", tokens) == 0
    assert kept.take(1, "b", tokens, "session") == 0
    assert kept.take(1, "a", tokens, "session") == 4 * BLOCK


def test_any_order_of_sessions_keeps_the_bounds_and_the_count() -> None:
    rng = random.Random(2)  # noqa: S311
    kept = Kept(entries=6, cells=12 * BLOCK)
    for sequence in range(2000):
        start = rng.randrange(3)
        tokens = [start] * BLOCK * rng.randint(1, 3) + [rng.randrange(3)] * BLOCK * rng.randint(0, 3)
        client, key = rng.choice("ab"), rng.choice(["", "", "x", "y", "z"])
        found = kept.cache.find(client, tokens)
        if rng.random() < 0.1 and found and kept.cache.take(found[0], client, tokens, key):
            kept.dropped.append(found[0].id)
        kept.keep(client, tokens, sequence, key)
        entries = list(kept.cache._entries.values())
        assert len(entries) <= 6
        assert sum(len(entry.tokens) for entry in entries) == kept.ledger.cached <= 12 * BLOCK
        names = [(entry.client, name) for entry in entries for name in entry.keys]
        assert len(names) == len(set(names)), "a session has one entry"
        assert {entry.id for entry in entries}.isdisjoint(kept.dropped)
        assert len(entries) + len(kept.dropped) == sequence + 1, "no sequence id is lost"


class KeptState:
    """A state cache with a ledger and a list of the sequence ids that it dropped."""

    def __init__(self, entries: int = 4, cells: int = 1000) -> None:
        self.ledger = CellLedger(2000)
        self.dropped: list[int] = []
        self.cache = StateCache(self.ledger, entries, cells, self.dropped.append)

    def keep(self, client: str, tokens: list[int], sequence: int, key: str = "", maker: object = None) -> None:
        holding = Holding()
        self.ledger.grow(holding, len(tokens))
        kept = self.ledger.keep_whole(holding)
        self.ledger.release(holding)
        self.cache.keep(KeptPrefix(client, tokens, sequence, kept, {key} if key else set(), maker or object()))

    def found(self, client: str, tokens: list[int]) -> int | None:
        """Returns the sequence id of the entry that is found."""
        found = self.cache.find(client, tokens)
        return found and found[0].id


def test_only_a_whole_entry_is_found_and_the_longest_of_them() -> None:
    kept = KeptState()
    kept.keep("a", [1] * 20, 1)
    kept.keep("a", [1] * 37, 2)
    assert kept.found("a", [1] * 19) is None, "a part of it"
    assert kept.found("a", [*[1] * 19, 2, 2]) is None, "a part of it"
    assert kept.found("a", [*[1] * 36, 2]) == 1
    assert kept.found("a", [1] * 37) == 2
    assert kept.found("b", [1] * 37) is None
    assert kept.cache.common("a", [*[1] * 36, 2]) == 32
    assert kept.cache.common("b", [1] * 37) == 0


def test_one_entry_is_kept_for_the_same_tokens() -> None:
    kept = KeptState()
    kept.keep("a", [1] * 20, 1)
    kept.keep("b", [1] * 20, 2)
    kept.keep("a", [1] * 20, 3)
    assert kept.dropped == [1]
    assert kept.ledger.cached == 2 * 20, "an entry's open block counts too"
    kept.cache.clear()
    assert kept.ledger.free == 2000


def test_longest_entry_of_a_request_is_evicted_first() -> None:
    kept = KeptState(entries=3)
    kept.keep("a", [1] * 20, 1, maker=7)
    kept.keep("a", [2] * 20, 2, maker=8)
    kept.keep("a", [1] * 50, 3, maker=7)
    kept.keep("a", [3] * 20, 4)
    kept.keep("a", [4] * 20, 5)
    assert kept.dropped == [2, 3]
    assert kept.found("a", [1] * 60) == 1


def test_a_session_has_the_entries_of_its_newest_request() -> None:
    kept = KeptState(entries=8)
    kept.keep("a", [1] * 20, 1, "s", maker=1)
    kept.keep("a", [1] * 30, 2, "s", maker=1)
    kept.keep("b", [1] * 30, 3, "s", maker=2)
    assert kept.dropped == []
    kept.keep("a", [1] * 40, 4, "s", maker=3)
    assert sorted(kept.dropped) == [1, 2]
    assert kept.found("a", [1] * 50) == 4


def test_more_cells_than_there_may_be_are_given_back() -> None:
    kept = KeptState(cells=100)
    for sequence in range(3):
        kept.keep("a", [sequence] * 40, sequence)
    assert kept.dropped == [0]
    assert kept.ledger.cached == 80
