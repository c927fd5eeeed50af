"""The fixture for the model commands with a scripted catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.models.catalog_stand_in import CatalogStandIn, Commands, running


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Commands]:
    """Yields the `allm models` command; `models.catalog` is the scripted stand-in."""
    catalog = CatalogStandIn()
    with running(catalog) as address:
        yield Commands(catalog, address, tmp_path)
