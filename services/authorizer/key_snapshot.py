"""A snapshot of the key table in a file, so that a start while the catalog is down can still admit requests.

The file holds hashes, from which no key can be computed. It is written in the background, shortly after a change.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from services.authorizer.key_table import KeyTable, KnownKey
from services.storage.private_files import make_private

log = logging.getLogger(__name__)

VERSION = 1
PAUSE = 0.05  # seconds from a change to its write, which includes all changes meanwhile
RETRY_SECONDS = 10.0  # seconds until a failed write is retried
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The file's content, as JSON; hashes are base64."""

    version: int
    keys: tuple[KnownKey, ...]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Snapshot).decode


class KeySnapshot:
    """Keeps a file in sync with a table, as long as `keep` runs."""

    def __init__(self, path: Path, table: KeyTable) -> None:
        self._path = path
        self._table = table
        self._changed = asyncio.Event()
        table.on_change = self._changed.set

    def load(self) -> bool:
        """Fills the table from the file; returns False without a usable file."""
        make_private(self._path)
        try:
            found = _read(self._path)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            log.warning("the snapshot of keys cannot be used", extra={"path": str(self._path), "reason": str(error)})
            return False
        self._table.fill(found.keys)
        log.info("the keys of the last run were loaded", extra={"keys": len(self._table)})
        return True

    async def keep(self) -> None:
        """Writes the file after changes, until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(PAUSE)
            if not await self.flush():
                await asyncio.sleep(RETRY_SECONDS)

    async def flush(self) -> bool:
        """Writes pending changes. Returns False if the disk refuses; this is logged, and the changes stay pending."""
        if not self._changed.is_set():
            return True
        self._changed.clear()
        content = _encode(Snapshot(VERSION, tuple(self._table.all())))
        try:
            await asyncio.to_thread(self._write, content)
        except OSError as error:
            log.warning(
                "the snapshot of keys cannot be written: after a restart without the catalog, newer keys are unknown",
                extra={"path": str(self._path), "reason": str(error)},
            )
            self._changed.set()
            return False
        return True

    def _write(self, content: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = self._path.with_name(f"{self._path.name}.partial")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)


def _read(path: Path) -> Snapshot:
    """Reads the file. Raises OSError, or ValueError for an invalid file."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError("it is too large")
    found = _decode(path.read_bytes())
    if found.version != VERSION:
        raise ValueError(f"it is of version {found.version}, and this is {VERSION}")
    return found
