"""Decides whether a request is admitted: by its key, the key's scopes and the key's rate.

All lookups are in memory, because every request waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from services.auth.identity import LIFETIME_SECONDS, Identity, sign
from services.auth.key_format import MAX_CHARACTERS, PREFIX
from services.authorizer.bucket import Bucket, RateState
from services.authorizer.key_table import KeyTable
from services.authorizer.known_key import KnownKey
from services.authorizer.scopes import needed_scope
from services.errors import AuthorizerUnavailable, Forbidden, RateLimited, Unauthenticated

# A signed identity is reused for all calls of a key while it is valid for at least this long.
LEAST_SECONDS = 40
SHOWN = f"Authorization: Bearer {PREFIX}..."


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of a request that the decision depends on."""

    method: str
    path: str  # with its query
    authorization: str  # the header; empty: none


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admitted request, with the identity that it carries from here on."""

    client: str  # the key's id
    identity: str  # signed
    rate: RateState | None = None  # None: the key has no request limit


class Gatekeeper:
    """Decides from the key table. `clock`: seconds since the epoch; `ticks`: monotonic seconds."""

    def __init__(
        self,
        table: KeyTable,
        secret: bytes,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._secret = secret
        self._clock = clock
        self._ticks = ticks
        self._signed: dict[str, tuple[str, int]] = {}  # by key id: the identity and its expiry
        self._buckets: dict[str, Bucket] = {}  # by key id, for keys with a rate limit
        table.on_removal = self._forget

    def check(self, asked: Asked) -> Admitted:
        """Admits a request.

        Raises:
            Unauthenticated: it has no key, or an invalid one.
            Forbidden: the key lacks the scope.
            RateLimited: the key has reached its request limit.
            AuthorizerUnavailable: no keys are known yet.
        """
        key = self._key(asked.authorization)
        scope = needed_scope(asked.method, asked.path)
        if scope and scope not in key.scopes:
            raise Forbidden(f"This needs the scope '{scope}', which the key {key.id} does not have.")
        rate = self._take(key) if key.requests_per_minute else None
        return Admitted(key.id, self._identity(key), rate)

    def _key(self, authorization: str) -> KnownKey:
        scheme, _, shown = authorization.strip().partition(" ")
        shown = shown.strip()
        if not shown or scheme.lower() != "bearer":
            raise Unauthenticated(f"Missing API key: send yours in the header '{SHOWN}'.")
        key = self._table.find(shown) if len(shown) <= MAX_CHARACTERS else None
        if key is None and not self._table.loaded:
            raise AuthorizerUnavailable("No API key can be checked yet: the gateway has not heard from the catalog.")
        if key is None:
            raise Unauthenticated("Incorrect API key provided: it is not known here, or was revoked.")
        if 0 < key.expires <= self._clock():
            raise Unauthenticated(f"The API key {key.id} has expired.")
        return key

    def _take(self, key: KnownKey) -> RateState:
        now = self._ticks()
        bucket = self._buckets.get(key.id)
        if bucket is None:
            bucket = self._buckets[key.id] = Bucket(key.requests_per_minute, now)
        if seconds := bucket.take(now):
            raise RateLimited(
                f"The key {key.id} has made its {key.requests_per_minute} requests per minute: "
                f"ask again in {seconds} seconds.",
                retry_after=seconds,
                rates=bucket.state(now).headers(),
            )
        return bucket.state(now)

    def _identity(self, key: KnownKey) -> str:
        now = int(self._clock())
        text, expires = self._signed.get(key.id, ("", 0))
        if not LEAST_SECONDS <= expires - now <= LIFETIME_SECONDS:  # also where the clock was set back
            expires = now + LIFETIME_SECONDS
            identity = Identity(key.id, frozenset(key.scopes), key.models, key.tokens_per_minute, expires)
            text = sign(identity, self._secret)
            self._signed[key.id] = (text, expires)
        return text

    def _forget(self, key_id: str) -> None:
        self._signed.pop(key_id, None)
        self._buckets.pop(key_id, None)
