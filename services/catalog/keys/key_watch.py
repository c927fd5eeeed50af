"""Who watches the keys: each watcher gets all that are not revoked, a mark, and then every change.

As with models, only that a key has changed is kept for a watcher that reads slowly, so its memory is bounded by the
number of keys.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from services.catalog.keys.api_key import ApiKey
from services.catalog.open_watches import OpenWatches

MAX_WATCHERS = 100  # one for each gateway
MOST_AT_ONCE = 500  # keys of a snapshot


@dataclass(frozen=True, slots=True)
class KeysAdded:
    """Keys are there."""

    keys: tuple[ApiKey, ...]


@dataclass(frozen=True, slots=True)
class KeyRemoved:
    """The key of this id is no more."""

    key_id: str


@dataclass(frozen=True, slots=True)
class KeysSynced:
    """Everything that there was when the watch began has been told."""


KeyEvent = KeysAdded | KeyRemoved | KeysSynced


class KeyWatch:
    """One watcher of `keys`, a picture that others change."""

    def __init__(self, keys: Mapping[str, ApiKey]) -> None:
        self._keys = keys
        self._closed = False
        self._wake = asyncio.Event()
        self._sent: set[str] = set()  # ids that the reader takes for good
        self._first = deque(keys)  # ids of the snapshot
        self._marked = False  # whether its end was told
        self._pending: dict[str, None] = {}

    async def next(self) -> KeyEvent | None:
        """The next event; waits for one. None: the catalog stops."""
        while not self._closed:
            # What was revoked is told before the rest of a snapshot.
            if self._pending:
                key_id = next(iter(self._pending))
                del self._pending[key_id]
                if event := self._look(key_id):
                    return event
            elif self._first:
                if added := self._take():
                    return KeysAdded(added)
            elif not self._marked:
                self._marked = True
                return KeysSynced()
            else:
                self._wake.clear()
                await self._wake.wait()
        return None

    def notify(self, key_id: str) -> None:
        """Something about this key has changed."""
        self._pending[key_id] = None
        self._wake.set()

    def close(self) -> None:
        """Ends it."""
        self._closed = True
        self._wake.set()

    def _take(self) -> tuple[ApiKey, ...]:
        """A part of the snapshot."""
        ids = [self._first.popleft() for _ in range(min(len(self._first), MOST_AT_ONCE))]
        return tuple(key for key_id in ids if (key := self._new(key_id)))

    def _look(self, key_id: str) -> KeyEvent | None:
        """What the reader does not know of a key yet."""
        if new := self._new(key_id):
            return KeysAdded((new,))
        if key_id in self._sent and not self._valid(key_id):
            self._sent.discard(key_id)
            return KeyRemoved(key_id)
        return None

    def _new(self, key_id: str) -> ApiKey | None:
        key = self._valid(key_id)
        if key is None or key_id in self._sent:
            return None
        self._sent.add(key_id)
        return key

    def _valid(self, key_id: str) -> ApiKey | None:
        key = self._keys.get(key_id)
        return key if key and not key.revoked else None


class KeyWatchers:
    """All that watch."""

    def __init__(self, keys: Mapping[str, ApiKey]) -> None:
        self._keys = keys
        self._open: OpenWatches[KeyWatch] = OpenWatches(MAX_WATCHERS, "keys")

    def watch(self) -> AbstractContextManager[KeyWatch]:
        """A watch for as long as the block runs. Raises Overloaded when there are too many."""
        return self._open.watch(lambda: KeyWatch(self._keys))

    def notify(self, key_id: str) -> None:
        """Something about this key has changed."""
        for watch in self._open:
            watch.notify(key_id)

    def close(self) -> None:
        """Ends all of them, and those to come."""
        self._open.close()
