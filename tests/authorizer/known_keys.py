"""Keys of tests, and a table that knows them."""

from __future__ import annotations

from typing import Any

from services.auth.key_format import PREFIX, key_hash
from services.authorizer.key_table import KeyTable
from services.authorizer.known_key import KnownKey

SECRET = b"a secret that only tests have, 32 bytes and more"


def shown_key(name: str) -> str:
    """The key itself, as its owner has it."""
    return PREFIX + name.ljust(43, "x")


def known(name: str, **more: Any) -> KnownKey:
    """What is known of it: it may ask models, unless told otherwise."""
    return KnownKey(**({"id": f"key_{name}", "sha256": key_hash(shown_key(name)), "scopes": ("inference",)} | more))


def table(*keys: KnownKey) -> KeyTable:
    """One that has heard of these."""
    found = KeyTable()
    found.fill(keys)
    return found
