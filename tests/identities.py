"""Identities as the gateway's authorizer signs them, for tests that call services directly."""

from __future__ import annotations

import time
from pathlib import Path

from services.auth.identity import ADMIN, HEADER, INFERENCE, SERVICE, Identity, sign

SECRET = b"a secret that only tests have, 32 bytes and more"


def identity(
    subject: str = "key_ann", *scopes: str, models: tuple[str, ...] = (), tokens: int = 0, lifetime: int = 60
) -> Identity:
    """Returns an identity that is valid now; without `scopes` it may use models."""
    return Identity(subject, frozenset(scopes or (INFERENCE,)), models, tokens, int(time.time()) + lifetime)


def shown(who: Identity, secret: bytes = SECRET) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of this identity's calls."""
    return ((HEADER, sign(who, secret)),)


def ann(**limits: object) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a user with a key."""
    return shown(identity("key_ann", **limits))  # type: ignore[arg-type]


def operator() -> tuple[tuple[str, str], ...]:
    """Returns the metadata of an operator with an admin key."""
    return shown(identity("key_operator", ADMIN))


def own_process() -> tuple[tuple[str, str], ...]:
    """Returns the metadata of another allm process."""
    return shown(identity("service:test", ADMIN, SERVICE))


def write_secret(home: Path) -> Path:
    """Writes the secret file that processes with ALLM_AUTH=keys read."""
    path = home / "identity.secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path
