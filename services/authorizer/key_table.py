"""All keys that are not revoked, by hash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from services.auth.key_format import key_hash
from services.authorizer import metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A key that is not revoked: its hash and rights, without the key itself."""

    id: str
    sha256: bytes
    scopes: tuple[str, ...]
    models: tuple[str, ...] = ()  # ids, aliases or `prefix*`; none: all
    requests_per_minute: int = 0  # 0: no limit; same for the next four fields
    tokens_per_minute: int = 0
    concurrent_requests: int = 0
    bytes_in_flight: int = 0
    stored_bytes: int = 0
    expires: int = 0  # seconds since the epoch; refused from then on; 0: never


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
