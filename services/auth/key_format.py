"""API keys as callers show them: what they look like, and what of them may be kept."""

from __future__ import annotations

import hashlib
import re
import secrets

PREFIX = "sk-allm-"
SECRET_BYTES = 32
MAX_CHARACTERS = 512  # longer ones are none, and not worth hashing
SHOWN_CHARACTERS = 4  # of the random part: too few to guess the rest, enough to recognise a key
_ID = re.compile(r"key_[0-9a-f]{16}")


def new_key() -> str:
    """A key that nobody has: the prefix, and 43 characters that stand for 32 random bytes."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def new_key_id() -> str:
    """What a key is called from then on, where the key itself must not be seen."""
    return f"key_{secrets.token_hex(8)}"


def is_key_id(text: str) -> bool:
    """Whether a text has the shape of a key's id."""
    return bool(_ID.fullmatch(text))


def key_hash(key: str) -> bytes:
    """SHA-256 of a key, by which it is known where it must not be kept.

    A slow hash, as passwords need, would gain nothing: a key has 256 random bits, and nobody tries so many.
    """
    return hashlib.sha256(key.encode(errors="replace")).digest()


def key_hint(key: str) -> str:
    """Its first characters."""
    return f"{key[: len(PREFIX) + SHOWN_CHARACTERS]}..."
