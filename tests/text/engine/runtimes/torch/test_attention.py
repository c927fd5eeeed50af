"""Page tables: ownership of the cache's pages."""

from __future__ import annotations

import pytest

from services.text.engine.kv_cells import BLOCK
from services.text.engine.runtime import OutOfCells
from tests.late import late

torch_pages = late("services.text.engine.runtimes.torch.attention")


def tables(pages: int = 8) -> torch_pages.PageTables:
    return torch_pages.PageTables(pages + torch_pages.RESERVED_PAGES, sequences=4, longest=16)


def held(found: torch_pages.PageTables, sequence: int) -> list[int]:
    return [page for page in found.rows[sequence].tolist() if page != torch_pages.ZERO_PAGE]


def test_pages_come_as_tokens_fill_them() -> None:
    found = tables()
    assert found.extend([(0, 0, BLOCK)]) == []
    assert len(held(found, 0)) == 1
    found.extend([(0, BLOCK, 1)])
    found.extend([(0, BLOCK + 1, BLOCK - 1)])
    assert len(held(found, 0)) == 2
    assert found.free == 6


def test_reserved_pages_are_never_given_out() -> None:
    found = tables()
    found.extend([(0, 0, 8 * BLOCK)])
    assert not {torch_pages.ZERO_PAGE, torch_pages.TRASH_PAGE} & set(held(found, 0))


def test_too_little_room_changes_nothing() -> None:
    found = tables()
    found.extend([(0, 0, 6 * BLOCK)])
    before = found.rows.clone()
    with pytest.raises(OutOfCells):
        found.extend([(1, 0, BLOCK), (2, 0, 2 * BLOCK)])
    assert found.free == 2
    assert (found.rows == before).all()


def test_shared_pages_come_back_with_the_last_holder() -> None:
    found = tables()
    found.extend([(0, 0, 4 * BLOCK)])
    found.share(0, 1, 3 * BLOCK)
    assert held(found, 1) == held(found, 0)[:3]
    assert found.free == 4
    found.cut(0, 0)
    assert found.free == 5
    found.cut(1, BLOCK)
    assert found.free == 7
    found.cut(1, 0)
    assert found.free == 8
    assert found.rows.sum() == 0


def test_a_shared_page_is_copied_before_it_is_written() -> None:
    found = tables()
    found.extend([(0, 0, BLOCK + 4)])
    found.share(0, 1, BLOCK + 4)
    (copy,) = found.extend([(1, BLOCK + 4, 1)])
    assert copy == (held(found, 0)[1], held(found, 1)[1])
    assert copy[0] != copy[1]
    assert held(found, 0)[0] == held(found, 1)[0]
    assert found.extend([(0, BLOCK + 4, 1)]) == [], "the source has its page for itself again"


def test_a_copy_counts_as_a_page() -> None:
    found = tables(2)
    found.extend([(0, 0, BLOCK + 4)])
    found.share(0, 1, BLOCK + 4)
    with pytest.raises(OutOfCells):
        found.extend([(1, BLOCK + 4, 1)])
    found.cut(0, 0)
    assert found.extend([(1, BLOCK + 4, 1)]) == [], "alone by now: written where it is"


def test_cutting_inside_a_page_keeps_it() -> None:
    found = tables()
    found.extend([(0, 0, 2 * BLOCK)])
    found.cut(0, BLOCK + 1)
    assert len(held(found, 0)) == 2
    found.cut(0, BLOCK)
    assert len(held(found, 0)) == 1
