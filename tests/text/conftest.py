"""Fixtures for the tests of the text service."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder with a short path: pytest's own are too long for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="allm-test-") as path:
        yield Path(path)
