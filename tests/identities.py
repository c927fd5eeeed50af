"""Identities as the gateway's authorizer and our own processes sign them, for tests that call services directly."""

from __future__ import annotations

import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from services.auth.identity import ADMIN, HEADER, INFERENCE, Identity, own_identity, sign
from services.auth.identity_keys import AUTHORIZER, PUBLIC_NAME, ROLES, PublicKey, SigningKey, create_keys


def new_key() -> SigningKey:
    """Returns a key that no file lists."""
    return SigningKey.of(Ed25519PrivateKey.generate())


KEYS = {role: new_key() for role in ROLES}  # of one deployment
PUBLIC = {key.id: PublicKey(key.key.public_key(), frozenset((role,))) for role, key in KEYS.items()}


def identity(
    subject: str = "key_ann", *scopes: str, models: tuple[str, ...] = (), tokens: int = 0, lifetime: int = 60
) -> Identity:
    """Returns an identity that is valid now; without `scopes` it may use models."""
    return Identity(subject, frozenset(scopes or (INFERENCE,)), models, tokens, int(time.time()) + lifetime)


def shown(who: Identity, key: SigningKey = KEYS[AUTHORIZER]) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of this identity's calls."""
    return ((HEADER, sign(who, key)),)


def ann(**limits: object) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a user with a key."""
    return shown(identity("key_ann", **limits))  # type: ignore[arg-type]


def operator() -> tuple[tuple[str, str], ...]:
    """Returns the metadata of an operator with an admin key."""
    return shown(identity("key_operator", ADMIN))


def own_process(role: str = "text") -> tuple[tuple[str, str], ...]:
    """Returns the metadata of another allm process."""
    return shown(own_identity(role, "test", int(time.time()) + 60), KEYS[role])


def write_keys(home: Path) -> Path:
    """Writes the keys that processes with ALLM_AUTH=keys read; returns their folder."""
    folder = home / "identity"
    folder.mkdir()
    files = {role: folder / f"{role}.key" for role in ROLES}
    for role, path in files.items():
        path.write_bytes(KEYS[role].key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    create_keys(files, folder / PUBLIC_NAME)
    return folder
