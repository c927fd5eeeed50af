"""The bytes of request bodies that a process holds, in shares of the callers' keys.

A key may use all of them while no other key needs any. Once they are used up, only keys get more that have less than an
equal share, so that one key cannot keep the others out. What a key already holds is not taken from it: all keys
together hold at most twice as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from services.errors import Overloaded, RateLimited, RequestTooLarge

RETRY_SECONDS = 2.0


class BytesInFlight:
    """The bodies of this process. `most`: bytes of all keys, without a key that is below its share; 0: no limit."""

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._held: Counter[str] = Counter()  # by key, without zeros

    @property
    def total(self) -> int:
        """Bytes in use."""
        return self._held.total()

    @contextmanager
    def hold(self, key: str, count: int, limit: int = 0) -> Iterator[None]:
        """Holds the bytes of a body while the block runs. `limit`: the key's own; 0: none.

        Raises:
            RequestTooLarge: the body alone exceeds the key's limit.
            RateLimited: the key holds as many bytes as it may.
            Overloaded: all bytes are in use, and the key has its share.
        """
        self._check(key, count, limit)
        self._held[key] += count
        try:
            yield
        finally:
            self._held[key] -= count
            if not self._held[key]:
                del self._held[key]

    def _check(self, key: str, count: int, limit: int) -> None:
        own = self._held.get(key, 0)
        if limit and count > limit:
            raise RequestTooLarge(f"The request has {count} bytes; the key {key} may have {limit} in progress.")
        if limit and own + count > limit:
            raise RateLimited(
                f"The key {key} has requests of {own} bytes in progress, and this one has {count}: its limit is "
                f"{limit}.",
                retry_after=RETRY_SECONDS,
            )
        after = self.total + count
        share = self._most // len(self._held.keys() | {key})
        if self._most and after > self._most and (own + count > share or after > 2 * self._most):
            raise Overloaded(
                f"Requests in progress have {self.total} bytes, {own} of them with this key, and this one has {count}; "
                f"{self._most} are allowed (ALLM_BYTES_IN_FLIGHT).",
                retry_after=RETRY_SECONDS,
            )
