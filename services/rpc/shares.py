"""What a process can hold for its callers, in shares of their keys: bytes of request bodies, uploaded files.

A key may use all of it while no other key needs any. Once it is used up, only keys get more that have less than an
equal share, so that one key cannot keep the others out. What a key already holds is not taken from it: all keys
together hold at most twice as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from services.errors import Overloaded, RateLimited, RequestTooLarge

RETRY_SECONDS = 2.0


class Shares:
    """One resource of this process."""

    def __init__(
        self,
        most: int = 0,
        *,
        holders: str = "requests in progress",
        unit: str = "bytes",
        variable: str = "",
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """`most`: units of all keys, without a key that is below its share; 0: no limit. `variable`: its setting.

        `holders` and `unit` are words for errors.
        """
        self._most = most
        self._holders = holders
        self._unit = unit
        self._setting = f" ({variable})" if variable else ""
        self._retry_seconds = retry_seconds
        self._held: Counter[str] = Counter()  # by key, without zeros

    @property
    def total(self) -> int:
        """Units in use."""
        return self._held.total()

    @contextmanager
    def open(self, key: str, limit: int = 0) -> Iterator[Share]:
        """Yields an empty share of a request, which is free again after the block. `limit`: the key's own; 0: none."""
        share = Share(self, key, limit)
        try:
            yield share
        finally:
            self._held[key] -= share.taken
            if not self._held[key]:
                del self._held[key]

    @contextmanager
    def hold(self, key: str, count: int, limit: int = 0) -> Iterator[None]:
        """Holds units while the block runs. Raises as `Share.take`."""
        with self.open(key, limit) as share:
            share.take(count)
            yield

    def _take(self, share: Share, count: int) -> None:
        key, limit = share.key, share.limit
        own, unit = self._held[key], self._unit
        if limit and share.taken + count > limit:
            raise RequestTooLarge(
                f"The request has {share.taken + count} {unit}; the key {key} may have {limit} in use."
            )
        if limit and own + count > limit:
            raise RateLimited(
                f"The key {key} uses {own} {unit}, and this request needs {count}: its limit is {limit}.",
                retry_after=self._retry_seconds,
            )
        after = self.total + count
        equal = self._most // len(self._held.keys() | {key})
        if self._most and after > self._most and (own + count > equal or after > 2 * self._most):
            raise Overloaded(
                f"{self._holders} use {self.total} of {self._most} {unit}{self._setting}, {own} of them with this key: "
                f"no more are accepted",
                retry_after=self._retry_seconds,
            )
        self._held[key] += count
        share.taken += count


class Share:
    """What one request holds."""

    def __init__(self, shares: Shares, key: str, limit: int) -> None:
        self.key = key
        self.limit = limit
        self.taken = 0
        self._shares = shares

    def take(self, count: int) -> None:
        """Takes more units.

        Raises:
            RequestTooLarge: the request alone exceeds the key's limit.
            RateLimited: the key uses as much as it may.
            Overloaded: everything is in use, and the key has its share.
        """
        self._shares._take(self, count)
