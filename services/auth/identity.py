"""Who a call is from: an identity that the gateway's authorizer, or one of our own processes, signed.

It travels as the metadata `x-allm-identity`: `v1.`, then base64url of the JSON `{"sub", "scopes", "models", "tpm",
"exp"}`, a dot, and base64url of the HMAC-SHA256 of all before that dot. Nobody without the secret can make one, so that
services need not ask who sits at the other end of a connection. It is looked at when a call starts, and never again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any, TypeGuard

from services.errors import Unauthenticated

HEADER = "x-allm-identity"
VERSION = "v1"
LIFETIME_SECONDS = 60
INFERENCE = "inference"  # to ask models
ADMIN = "admin"  # to register, remove, load and unload them, and to make keys
SERVICE = "service"  # what only our own processes may: reporting, and watching keys
SCOPES = frozenset((INFERENCE, ADMIN, SERVICE))
# gRPC takes 8 KiB of metadata a call, in which other headers have to find room. It bounds the list of models.
MAX_CHARACTERS = 6144


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls, and what it may do."""

    subject: str  # the id of a key, or `service:<replica>`
    scopes: frozenset[str]  # what is not in SCOPES grants nothing
    models: tuple[str, ...] = ()  # ids, aliases or `prefix*` that it may use; none: all
    tokens_per_minute: int = 0  # 0: no limit
    expires: int = 0  # seconds since 1970; from then on it is refused

    def may_use(self, *names: str) -> bool:
        """Whether one of a model's names, its id and its aliases, is on the list."""
        return not self.models or any(_matches(pattern, name) for pattern in self.models for name in names)


# Whoever calls where no keys are asked for: ALLM_AUTH is `none` or `open`.
ANONYMOUS = Identity("anonymous", frozenset((INFERENCE, ADMIN, SERVICE)))


def sign(identity: Identity, secret: bytes) -> str:
    """The header's value. Raises ValueError for an identity whose list of models is too long for a header."""
    claims = {
        "sub": identity.subject,
        "scopes": sorted(identity.scopes),
        "models": identity.models,
        "tpm": identity.tokens_per_minute,
        "exp": identity.expires,
    }
    body = _base64url(json.dumps(claims, separators=(",", ":")).encode())
    signed = f"{VERSION}.{body}"
    text = f"{signed}.{_signature(signed, secret)}"
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"an identity may take {MAX_CHARACTERS} characters, not {len(text)}: name fewer models")
    return text


def verify(text: str, secret: bytes, now: float) -> Identity:
    """The identity behind a header's value at a time, in seconds since 1970.

    Raises:
        Unauthenticated: it is of another version, not signed with this secret, changed, or expired. The text is not
            repeated: for as long as it is valid it opens doors.
    """
    if len(text) > MAX_CHARACTERS:
        raise Unauthenticated(f"{HEADER} is longer than {MAX_CHARACTERS} characters.")
    signed, _, signature = text.rpartition(".")
    version, _, body = signed.partition(".")
    if version != VERSION:
        raise Unauthenticated(f"{HEADER} is not of version {VERSION}.")
    if not hmac.compare_digest(_signature(signed, secret).encode(), signature.encode(errors="replace")):
        raise Unauthenticated(f"{HEADER} is not signed with this deployment's secret (ALLM_IDENTITY_SECRET_FILE).")
    identity = _read(body)
    if not now < identity.expires:
        raise Unauthenticated(
            f"{HEADER} has expired: one is made for each call. Where this happens to every call, the clocks of the "
            "machines differ."
        )
    return identity


def _read(body: str) -> Identity:
    """What was signed. It comes from our own processes, but possibly from those of another version."""
    try:
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        raise Unauthenticated(f"{HEADER} cannot be read.") from None
    if not isinstance(claims, dict):
        raise Unauthenticated(f"{HEADER} cannot be read.")
    subject, tokens, expires = claims.get("sub"), claims.get("tpm", 0), claims.get("exp")
    scopes, models = claims.get("scopes"), claims.get("models", [])
    if not (isinstance(subject, str) and subject and _is_count(tokens) and _is_count(expires)):
        raise Unauthenticated(f"{HEADER} lacks 'sub' or 'exp', or has a 'tpm' that is no number.")
    # A text is a sequence, too: taken for a list it would be one of single characters.
    if not (_is_names(scopes) and _is_names(models)):
        raise Unauthenticated(f"{HEADER} has 'scopes' or 'models' that are no lists of names.")
    return Identity(subject, frozenset(scopes), tuple(models), tokens, expires)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _is_names(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) and name for name in value)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _signature(signed: str, secret: bytes) -> str:
    return _base64url(hmac.digest(secret, signed.encode(errors="replace"), hashlib.sha256))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
