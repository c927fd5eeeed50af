"""Fixtures that every test may use. That this file is here puts `tests/` on the import path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stack import Stack, running_stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack for all tests that only use it; who stops or kills parts of one starts one of its own."""
    with running_stack(tmp_path_factory.mktemp("allm")) as running:
        yield running
