"""The cell ledger, compared with a plain count of holders."""

import random

from services.text.engine.kv_cells import BLOCK, DEFAULT_CONTEXT, CellLedger, Holding, kept_cells


def test_growing_and_releasing() -> None:
    ledger, holding = CellLedger(1000), Holding()
    ledger.grow(holding, BLOCK + 3)
    assert (ledger.active, ledger.cached, ledger.free) == (BLOCK + 3, 0, 1000 - BLOCK - 3)
    ledger.release(holding)
    assert (ledger.active, ledger.cached, ledger.free) == (0, 0, 1000)


def test_a_shared_block_is_one_block() -> None:
    ledger, first, second = CellLedger(1000), Holding(), Holding()
    ledger.grow(first, 3 * BLOCK)
    ledger.share(first, second, 2 * BLOCK)
    ledger.grow(second, 5)
    assert ledger.active == 3 * BLOCK + 5
    ledger.release(first)
    assert ledger.active == 2 * BLOCK + 5


def test_kept_cells_are_cached_until_a_request_uses_them() -> None:
    ledger, first, second = CellLedger(1000), Holding(), Holding()
    ledger.grow(first, 2 * BLOCK + 1)
    kept = ledger.keep(first)
    assert (ledger.active, ledger.cached) == (0, 2 * BLOCK)
    ledger.share(kept, second, BLOCK)
    assert (ledger.active, ledger.cached) == (BLOCK, BLOCK)
    ledger.forget(kept)
    assert (ledger.active, ledger.cached) == (BLOCK, 0)
    ledger.release(second)
    assert ledger.free == 1000


def test_a_copy_of_all_that_a_sequence_holds_shares_its_blocks_and_has_a_tail_of_its_own() -> None:
    ledger, holding = CellLedger(1000), Holding()
    ledger.grow(holding, 2 * BLOCK + 3)
    kept = ledger.keep_whole(holding)
    assert (ledger.active, ledger.cached) == (2 * BLOCK + 3, 3)
    ledger.release(holding)
    assert (ledger.active, ledger.cached) == (0, 2 * BLOCK + 3)
    ledger.forget(kept)
    assert ledger.free == 1000


def test_random_histories_add_up() -> None:
    rng = random.Random(7)  # noqa: S311
    ledger = CellLedger(10**6)
    running: list[Holding] = []
    cached: list[Holding] = []
    for _ in range(2000):
        act = rng.randrange(5)
        if act == 0:
            running.append(Holding())
        elif act == 1 and running:
            ledger.grow(rng.choice(running), rng.randint(1, 40))
        elif act == 2 and running:
            source, target = rng.choice(running + cached), Holding()
            ledger.share(source, target, rng.randint(0, len(source.blocks)) * BLOCK)
            running.append(target)
        elif act == 3 and running:
            holding = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.5:
                cached.append(ledger.keep(holding))
            else:
                ledger.release(holding)
        elif act == 4 and cached:
            ledger.forget(cached.pop(rng.randrange(len(cached))))
        active = {id(block) for holding in running for block in holding.blocks}
        kept = {id(block) for holding in cached for block in holding.blocks} - active
        assert ledger.active == len(active) * BLOCK + sum(holding.tail for holding in running)
        assert ledger.cached == len(kept) * BLOCK


def test_a_long_context_keeps_its_whole_prompt() -> None:
    """A coding agent's prompt of 24,000 tokens must still be there at its next turn."""
    assert kept_cells(DEFAULT_CONTEXT, DEFAULT_CONTEXT, shared=False) == DEFAULT_CONTEXT
    assert kept_cells(DEFAULT_CONTEXT, DEFAULT_CONTEXT, shared=True) == DEFAULT_CONTEXT // 4
    long = 2 * DEFAULT_CONTEXT
    assert kept_cells(long, long, shared=True) == long
