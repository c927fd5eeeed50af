"""Kept states: found only as a whole; eviction order within a session."""

from services.text.engine.kv_cells import CellLedger, Holding
from services.text.engine.prefix import Entry
from services.text.engine.state_cache import StateCache


class Kept:
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
        self.cache.keep(Entry(client, tokens, sequence, kept, {key} if key else set(), maker or object()))

    def found(self, client: str, tokens: list[int]) -> int | None:
        """Returns the sequence id of the entry that is found."""
        found = self.cache.find(client, tokens)
        return found and found[0].id


def test_only_a_whole_entry_is_found_and_the_longest_of_them() -> None:
    kept = Kept()
    kept.keep("a", [1] * 20, 1)
    kept.keep("a", [1] * 37, 2)
    assert kept.found("a", [1] * 19) is None, "a part of it"
    assert kept.found("a", [*[1] * 19, 2, 2]) is None, "a part of it"
    assert kept.found("a", [*[1] * 36, 2]) == 1
    assert kept.found("a", [1] * 37) == 2
    assert kept.found("b", [1] * 37) is None
    assert kept.cache.common("a", [*[1] * 36, 2]) == 32
    assert kept.cache.common("b", [1] * 37) == 0


def test_of_the_same_tokens_one_entry_is_kept() -> None:
    kept = Kept()
    kept.keep("a", [1] * 20, 1)
    kept.keep("b", [1] * 20, 2)
    kept.keep("a", [1] * 20, 3)
    assert kept.dropped == [1]
    assert kept.ledger.cached == 2 * 20, "an entry's open block counts too"
    kept.cache.clear()
    assert kept.ledger.free == 2000


def test_of_a_request_the_longest_entry_goes_first() -> None:
    kept = Kept(entries=3)
    kept.keep("a", [1] * 20, 1, maker=7)
    kept.keep("a", [2] * 20, 2, maker=8)
    kept.keep("a", [1] * 50, 3, maker=7)
    kept.keep("a", [3] * 20, 4)
    kept.keep("a", [4] * 20, 5)
    assert kept.dropped == [2, 3]
    assert kept.found("a", [1] * 60) == 1


def test_a_session_has_the_entries_of_its_newest_request() -> None:
    kept = Kept(entries=8)
    kept.keep("a", [1] * 20, 1, "s", maker=1)
    kept.keep("a", [1] * 30, 2, "s", maker=1)
    kept.keep("b", [1] * 30, 3, "s", maker=2)
    assert kept.dropped == []
    kept.keep("a", [1] * 40, 4, "s", maker=3)
    assert sorted(kept.dropped) == [1, 2]
    assert kept.found("a", [1] * 50) == 4


def test_more_cells_than_there_may_be_are_given_back() -> None:
    kept = Kept(cells=100)
    for sequence in range(3):
        kept.keep("a", [sequence] * 40, sequence)
    assert kept.dropped == [0]
    assert kept.ledger.cached == 80
