"""The format of API keys, and the parts of a key that may be stored."""

from __future__ import annotations

import hashlib
import re
import secrets

PREFIX = "sk-allm-"
SECRET_BYTES = 32
MAX_CHARACTERS = 512  # longer texts are no keys, and not worth hashing
SHOWN_CHARACTERS = 4  # of the random part: too few to guess the rest, enough to recognise a key
_ID = re.compile(r"key_[0-9a-f]{16}")


def new_key() -> str:
    """Returns a new key: the prefix, and 43 characters for 32 random bytes."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def new_key_id() -> str:
    """Returns a new id for a key, for use where the key itself must not be seen."""
    return f"key_{secrets.token_hex(8)}"


def is_key_id(text: str) -> bool:
    """Returns whether a text has the form of a key's id."""
    return bool(_ID.fullmatch(text))


def key_hash(key: str) -> bytes:
    """Returns the SHA-256 of a key, which is stored instead of the key.

    A slow hash, as for passwords, would gain nothing: a key has 256 random bits, too many to try.
    """
    return hashlib.sha256(key.encode(errors="replace")).digest()


def key_hint(key: str) -> str:
    """Returns the first characters of a key."""
    return f"{key[: len(PREFIX) + SHOWN_CHARACTERS]}..."
