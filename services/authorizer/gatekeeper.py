"""Whether a request may pass: its key, what that may do, and how often it comes.

Everything is looked up in memory: this stands in the way of every request.
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

# A signed identity serves for all calls of a key until it is valid for no longer than this.
LEAST_SECONDS = 40
SHOWN = f"Authorization: Bearer {PREFIX}..."


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request tells about itself."""

    method: str
    path: str  # with its query
    authorization: str  # the header; empty: none


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may pass, and what it carries from here on."""

    client: str  # the key's id
    identity: str  # signed
    rate: RateState | None = None  # None: the key has no limit of requests


class Gatekeeper:
    """Decides by what a table knows. `clock`: seconds since the epoch; `ticks`: seconds that only grow."""

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
        self._signed: dict[str, tuple[str, int]] = {}  # by key id: the identity, and when it expires
        self._buckets: dict[str, Bucket] = {}  # by key id, of those that have a rate
        table.on_removal = self._forget

    def check(self, asked: Asked) -> Admitted:
        """Lets a request pass.

        Raises:
            Unauthenticated: it shows no key, or none that is valid.
            Forbidden: the key may not do this.
            RateLimited: the key has made as many requests as it may.
            AuthorizerUnavailable: nothing is known of any key yet.
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
