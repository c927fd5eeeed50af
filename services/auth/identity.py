"""The identity of a caller, signed by the gateway's authorizer or by one of our own processes.

It travels in the metadata `x-allm-identity`: `v1.`, then base64url of the JSON `{"sub", "scopes", "models", "tpm",
"exp"}`, a dot, and base64url of the HMAC-SHA256 of everything before that dot. Nobody can forge one without the secret,
so services need not know the other end of a connection. It is verified once, when a call starts.
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
INFERENCE = "inference"  # to use models
ADMIN = "admin"  # to register, remove, load and unload them, and to make keys
SERVICE = "service"  # only for our own processes: reporting, and watching keys
SCOPES = frozenset((INFERENCE, ADMIN, SERVICE))
# gRPC allows 8 KiB of metadata per call, including other headers. This bounds the list of models.
MAX_CHARACTERS = 6144


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller and its permissions."""

    subject: str  # the id of a key, or `service:<replica>`
    scopes: frozenset[str]  # scopes outside SCOPES grant nothing
    models: tuple[str, ...] = ()  # allowed ids, aliases or `prefix*`; empty: all
    tokens_per_minute: int = 0  # 0: no limit
    expires: int = 0  # seconds since the epoch; refused from then on

    def may_use(self, *names: str) -> bool:
        """Returns whether one of a model's names, its id and its aliases, is allowed."""
        return not self.models or any(_matches(pattern, name) for pattern in self.models for name in names)


# The caller if no keys are required: ALLM_AUTH is `none` or `open`.
ANONYMOUS = Identity("anonymous", frozenset((INFERENCE, ADMIN, SERVICE)))


def sign(identity: Identity, secret: bytes) -> str:
    """Returns the header's value. Raises ValueError if the list of models is too long for a header."""
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
    """Returns the identity in a header's value. `now`: seconds since the epoch.

    Raises:
        Unauthenticated: it is of another version, not signed with this secret, changed, or expired. The message does
            not repeat the text, which is a credential while it is valid.
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
    """Parses the signed claims. They come from our own processes, but possibly of another version."""
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
    # A string is a sequence, too: taken for a list it would be one of single characters.
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
