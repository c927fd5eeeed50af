"""The signed identity of a call, and the file of public keys that verifies it."""

from __future__ import annotations

import contextlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from services.auth.identity import SERVICE, may_sign, verify
from services.auth.identity_keys import ROLES, PublicKey, SigningKey, base64url, parse_public_keys, unbase64url
from services.errors import Unauthenticated
from tests.fuzz.fuzz_target import FuzzTarget

# A known key, so that the kept cases stay valid.
_KEY = SigningKey.of(Ed25519PrivateKey.from_private_bytes(bytes(32)))
_PUBLIC = {_KEY.id: PublicKey(_KEY.key.public_key(), frozenset(("text",)))}


def _identity(case: bytes) -> None:
    """Reads the case as a header's value, then as the claims of a text service that has been taken over."""
    with contextlib.suppress(Unauthenticated):
        _check(case.decode(errors="surrogateescape"))
    signed = f"v2.{_KEY.id}.{base64url(case)}"
    _check(f"{signed}.{base64url(_KEY.key.sign(signed.encode()))}")


def _check(text: str) -> None:
    found = verify(text, _PUBLIC, 0)
    assert may_sign(("text",), found)
    assert found.subject.startswith("service:text/")
    assert found.scopes <= {SERVICE}


def _public_keys(case: bytes) -> None:
    for key_id, key in parse_public_keys(case).items():
        assert key.key.public_bytes_raw() == unbase64url(key_id)
        assert key.roles and key.roles.issubset(ROLES)


IDENTITY_TARGETS = (
    FuzzTarget(
        "identity",
        _identity,
        words=(
            f"v2.{_KEY.id}.".encode(),
            *(b'"sub"', b'"scopes"', b'"models"', b'"tpm"', b'"exp"', b'"service:text/', b'"service"', b'"admin"'),
        ),
        longest=8 * 1024,
        cases=600,
    ),
    FuzzTarget(
        "public-keys",
        _public_keys,
        declared=(ValueError,),
        words=(_KEY.id.encode(), b" text", b",audio", b"#", b"\r\n"),
        cases=600,
    ),
)
