"""An API key in the authorizer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A key that is not revoked: its hash and rights, without the key itself."""

    id: str
    sha256: bytes
    scopes: tuple[str, ...]
    models: tuple[str, ...] = ()  # ids, aliases or `prefix*`; none: all
    requests_per_minute: int = 0  # 0: no limit; same for the next field
    tokens_per_minute: int = 0
    expires: int = 0  # seconds since the epoch; refused from then on; 0: never
