"""API keys for tests, and a table of them."""

from __future__ import annotations

from typing import Any

from services.auth.key_format import PREFIX, key_hash
from services.authorizer.key_table import KeyTable, KnownKey


def shown_key(name: str) -> str:
    """Returns the secret key itself, as its owner holds it."""
    return PREFIX + name.ljust(43, "x")


def known(name: str, **more: Any) -> KnownKey:
    """Returns the record of a key, with the inference scope by default."""
    return KnownKey(**({"id": f"key_{name}", "sha256": key_hash(shown_key(name)), "scopes": ("inference",)} | more))


def table(*keys: KnownKey) -> KeyTable:
    """Returns a loaded table of the keys."""
    found = KeyTable()
    found.fill(keys)
    return found
