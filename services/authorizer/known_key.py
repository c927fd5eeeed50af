"""A key as the authorizer knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A key that is not revoked, without the key itself."""

    id: str
    sha256: bytes
    scopes: tuple[str, ...]
    models: tuple[str, ...] = ()  # ids, aliases or `prefix*`; none: all
    requests_per_minute: int = 0  # 0: no limit; so is the next
    tokens_per_minute: int = 0
    expires: int = 0  # seconds since the epoch, from when on it is refused; 0: never
