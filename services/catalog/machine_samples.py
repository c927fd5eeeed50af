"""The machine's samples of the last minutes on disk, so that a restart of the catalog does not lose them."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence

import msgspec

from services.catalog.database import CatalogDatabase
from services.catalog.machine import Sample

log = logging.getLogger(__name__)

_decoder = msgspec.json.Decoder(Sample)


class MachineSamples:
    """The table of samples. `now`: seconds since the epoch."""

    def __init__(self, database: CatalogDatabase, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._now = now

    async def load(self, seconds: float) -> list[Sample]:
        """Returns the samples of the last `seconds`, oldest first. Skips those that another version wrote differently.

        Raises Internal when the file cannot be read.
        """
        newest = self._now() * 1000

        def read(connection: sqlite3.Connection) -> list[str]:
            wanted = (newest - seconds * 1000, newest)
            rows = connection.execute(
                "SELECT sample FROM machine_samples WHERE time BETWEEN ? AND ? ORDER BY time", wanted
            )
            return [text for (text,) in rows]

        found = []
        for text in await self._database.read(read):
            try:
                found.append(_decoder.decode(text))
            except msgspec.MsgspecError:
                log.debug("a sample of another version is skipped")
        return found

    async def save(self, samples: Sequence[Sample], oldest: float) -> None:
        """Adds samples, oldest first, and deletes all before `oldest` and after the last, in one transaction.

        `oldest`: seconds since the epoch. Later ones are those of a clock that was set back. Raises Internal when the
        file cannot be written.
        """
        rows = [(round(sample.at * 1000), msgspec.json.encode(sample).decode()) for sample in samples]

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "DELETE FROM machine_samples WHERE time < ? OR time > ?", (round(oldest * 1000), rows[-1][0])
            )
            connection.executemany("INSERT OR REPLACE INTO machine_samples VALUES (?, ?)", rows)

        if rows:
            await self._database.write(write)
