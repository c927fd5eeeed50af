"""All keys that are not revoked, by hash, and their snapshot in a file.

With the snapshot a start while the catalog is down can still admit requests. It holds hashes, from which no key can be
computed, and is written in the background, shortly after a change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from services.auth.key_format import KeyRights, key_hash
from services.authorizer import metrics
from services.storage import make_private, replace_file

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey(KeyRights):
    """A key that is not revoked: its hash and rights, without the key itself."""

    id: str
    sha256: bytes


class KeyTable:
    """The keys known at the moment. `on_change` is called after every change, `on_removal` with a removed key's id."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.on_removal: Callable[[str], None] = lambda _: None
        self.loaded = False  # whether the set of keys is known; it may be empty
        self._by_hash: dict[bytes, KnownKey] = {}
        self._by_id: dict[str, KnownKey] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, key: str) -> KnownKey | None:
        """Returns the record of a key that a caller presents; None: the key is unknown."""
        return self._by_hash.get(key_hash(key))

    def all(self) -> list[KnownKey]:
        """Returns all keys."""
        return list(self._by_id.values())

    def fill(self, keys: Iterable[KnownKey]) -> None:
        """Loads the keys that this process knew in its last run."""
        for key in keys:
            self._put(key)
        self.loaded = True

    def put(self, key: KnownKey) -> None:
        """Adds or replaces a key."""
        if self._by_id.get(key.id) != key:
            self._remove(key.id)
            self._put(key)
            self.on_change()

    def remove(self, key_id: str) -> None:
        """Removes a key."""
        if self._remove(key_id):
            self.on_change()

    def retain(self, key_ids: Collection[str]) -> None:
        """Removes all keys but these, which are then the complete set."""
        gone = [key_id for key_id in self._by_id if key_id not in key_ids]
        for key_id in gone:
            self._remove(key_id)
        if gone or not self.loaded:
            self.loaded = True
            self.on_change()

    def _put(self, key: KnownKey) -> None:
        self._by_id[key.id] = self._by_hash[key.sha256] = key
        metrics.KEYS.set(len(self._by_id))

    def _remove(self, key_id: str) -> bool:
        key = self._by_id.pop(key_id, None)
        if key is None:
            return False
        self._by_hash.pop(key.sha256, None)
        metrics.KEYS.set(len(self._by_id))
        self.on_removal(key_id)
        return True


VERSION = 1
PAUSE = 0.05  # seconds from a change to its write, which includes all changes meanwhile
RETRY_SECONDS = 10.0  # seconds until a failed write is retried
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """The file's content, as JSON; hashes are base64."""

    version: int
    keys: tuple[KnownKey, ...]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredKeys).decode


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
        content = _encode(StoredKeys(VERSION, tuple(self._table.all())))
        try:
            await asyncio.to_thread(replace_file, self._path, content, 0o600)
        except OSError as error:
            log.warning(
                "the snapshot of keys cannot be written: after a restart without the catalog, newer keys are unknown",
                extra={"path": str(self._path), "reason": str(error)},
            )
            self._changed.set()
            return False
        return True


def _read(path: Path) -> StoredKeys:
    """Reads the file. Raises OSError, or ValueError for an invalid file."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError("it is too large")
    found = _decode(path.read_bytes())
    if found.version != VERSION:
        raise ValueError(f"it has version {found.version}, expected {VERSION}")
    return found
