"""The commands with a scripted catalog behind them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.models.catalog_stand_in import CatalogStandIn, Commands, running


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Commands]:
    """`allm models`; the stand-in's script is in `models.catalog`."""
    catalog = CatalogStandIn()
    with running(catalog) as address:
        yield Commands(catalog, address, tmp_path)
