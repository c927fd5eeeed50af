"""Watches of the keys: each watcher gets all keys that are not revoked, a mark, and then every change.

As with models, a slow watcher queues only the ids of changed keys, so its memory is bounded by the number of keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from services.catalog.keys.api_key import ApiKey
from services.catalog.open_watches import OpenWatch, OpenWatches

MAX_WATCHERS = 100  # one for each gateway
MOST_AT_ONCE = 500  # keys of a snapshot per event


@dataclass(frozen=True, slots=True)
class KeysAdded:
    """Keys that the reader does not have yet."""

    keys: tuple[ApiKey, ...]


@dataclass(frozen=True, slots=True)
class KeyRemoved:
    """The key with this id was revoked or deleted."""

    key_id: str


@dataclass(frozen=True, slots=True)
class KeysSynced:
    """Marks the end of the snapshot from the beginning of the watch."""


KeyEvent = KeysAdded | KeyRemoved | KeysSynced


class KeyWatch(OpenWatch[KeyEvent]):
    """A single watcher of `keys`, a live mapping."""

    def __init__(self, keys: Mapping[str, ApiKey]) -> None:
        super().__init__()
        self._keys = keys
        self._sent: set[str] = set()  # ids of keys that the reader holds as valid
        self._first = deque(keys)  # ids of the snapshot
        self._marked = False  # whether the end of the snapshot was sent
        self._pending: dict[str, None] = {}

    def _take(self) -> KeyEvent | None:
        while self._pending:  # revocations are sent before the rest of a snapshot
            key_id = next(iter(self._pending))
            del self._pending[key_id]
            if event := self._event_of(key_id):
                return event
        while self._first:
            if added := self._next_part():
                return KeysAdded(added)
        if self._marked:
            return None
        self._marked = True
        return KeysSynced()

    def notify(self, key_id: str) -> None:
        """Marks a key as changed and wakes the watcher."""
        self._pending[key_id] = None
        self._wake.set()

    def _next_part(self) -> tuple[ApiKey, ...]:
        """Returns the next part of the snapshot."""
        ids = [self._first.popleft() for _ in range(min(len(self._first), MOST_AT_ONCE))]
        return tuple(key for key_id in ids if (key := self._unsent(key_id)))

    def _event_of(self, key_id: str) -> KeyEvent | None:
        """Returns the event that brings the reader up to date on a key, if any."""
        if new := self._unsent(key_id):
            return KeysAdded((new,))
        if key_id in self._sent and not self._valid(key_id):
            self._sent.discard(key_id)
            return KeyRemoved(key_id)
        return None

    def _unsent(self, key_id: str) -> ApiKey | None:
        key = self._valid(key_id)
        if key is None or key_id in self._sent:
            return None
        self._sent.add(key_id)
        return key

    def _valid(self, key_id: str) -> ApiKey | None:
        key = self._keys.get(key_id)
        return key if key and not key.revoked else None


class KeyWatchers:
    """All open watches of the keys."""

    def __init__(self, keys: Mapping[str, ApiKey]) -> None:
        self._keys = keys
        self._open: OpenWatches[KeyWatch] = OpenWatches(MAX_WATCHERS, "keys")

    def watch(self) -> AbstractContextManager[KeyWatch]:
        """Opens a watch for the duration of the block. Raises Overloaded when there are too many."""
        return self._open.watch(lambda: KeyWatch(self._keys))

    def notify(self, key_id: str) -> None:
        """Notifies all watchers of a changed key."""
        for watch in self._open:
            watch.notify(key_id)

    def close(self) -> None:
        """Ends all watches, including any opened later."""
        self._open.close()
