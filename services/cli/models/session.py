"""The session of a command: a connection to the running allm, and the settings of the environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from services.cli.ending import plainly
from services.cli.keys.catalog_door import catalog_address
from services.cli.models.catalog import Catalog
from services.cli.models.connection import Connection, command_identity, connect, find_address
from services.settings.settings import Settings, load_settings


@dataclass(frozen=True, slots=True)
class Session:
    """A connection with its settings."""

    connection: Connection
    catalog: Catalog
    settings: Settings


@contextmanager
def session(address: str) -> Iterator[Session]:
    """Connects to allm at `address`; empty: the local one. Errors end the command with a sentence."""
    with plainly():
        settings = load_settings()
        where, catalog = find_address(address, settings), "" if address else catalog_address("", settings)
        own = command_identity(settings, "allm-models")
        with connect(where, own, settings.auth.api_key, catalog) as connection:
            yield Session(connection, Catalog(connection), settings)
