"""The format of API keys, the parts of a key that may be stored, and the rights of a key."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

PREFIX = "sk-allm-"
SECRET_BYTES = 32
MAX_CHARACTERS = 512  # longer texts are no keys, and not worth hashing
SHOWN_CHARACTERS = 4  # of the random part: too few to guess the rest, enough to recognise a key
# Fields of KeyRights that limit their key; 0: no limit.
LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "bytes_in_flight", "stored_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRights:
    """The rights and the limits of a key."""

    scopes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()  # ids, aliases or `prefix*`; none: all
    requests_per_minute: int = 0  # 0: no limit; same for the next four fields
    tokens_per_minute: int = 0
    concurrent_requests: int = 0
    bytes_in_flight: int = 0
    stored_bytes: int = 0
    expires: int = 0  # seconds since the epoch; refused from then on; 0: never


def new_key() -> str:
    """Returns a new key: the prefix, and 43 characters for 32 random bytes."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def new_key_id() -> str:
    """Returns a new id for a key, for use where the key itself must not be seen."""
    return f"key_{secrets.token_hex(8)}"


def key_hash(key: str) -> bytes:
    """Returns the SHA-256 of a key, which is stored instead of the key.

    A slow hash, as for passwords, would gain nothing: a key has 256 random bits, too many to try.
    """
    return hashlib.sha256(key.encode(errors="replace")).digest()


def key_hint(key: str) -> str:
    """Returns the first characters of a key."""
    return f"{key[: len(PREFIX) + SHOWN_CHARACTERS]}..."
