"""All keys that are not revoked, by their hashes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from services.auth.key_format import key_hash
from services.authorizer import metrics
from services.authorizer.known_key import KnownKey


class KeyTable:
    """What is known at the moment. `on_change` is called whenever that changes; `on_removal` with the id of a key that
    is no more."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.on_removal: Callable[[str], None] = lambda _: None
        self.loaded = False  # whether it is known which keys there are: no key at all is an answer, too
        self._by_hash: dict[bytes, KnownKey] = {}
        self._by_id: dict[str, KnownKey] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, key: str) -> KnownKey | None:
        """What is known of a key as a caller shows it; None: nothing."""
        return self._by_hash.get(key_hash(key))

    def all(self) -> list[KnownKey]:
        """All keys."""
        return list(self._by_id.values())

    def fill(self, keys: Iterable[KnownKey]) -> None:
        """Takes over what was known when this process last ran."""
        for key in keys:
            self._put(key)
        self.loaded = True

    def put(self, key: KnownKey) -> None:
        """A key is there."""
        if self._by_id.get(key.id) != key:
            self._remove(key.id)
            self._put(key)
            self.on_change()

    def remove(self, key_id: str) -> None:
        """A key is no more."""
        if self._remove(key_id):
            self.on_change()

    def retain(self, key_ids: Collection[str]) -> None:
        """These are all keys there are."""
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
