"""The identity of a caller, signed by the gateway's authorizer or by one of our own processes.

It travels in the metadata `x-allm-identity`: `v2.`, the id of the key, a dot, base64url of the JSON `{"sub", "scopes",
"models", "tpm", "exp", "conc", "bytes", "stored"}`, a dot, and base64url of the Ed25519 signature of everything before
that dot. A key speaks only for its roles (`may_sign`): services hold public keys and their own private key, and none of
these can make an admin. An identity is verified once, when a call starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from cryptography.exceptions import InvalidSignature

from services.auth.identity_keys import (
    AUTHORIZER,
    OPERATOR,
    PUBLIC_KEYS_FILE,
    SERVICES,
    PublicKeys,
    SigningKey,
    base64url,
    unbase64url,
)
from services.errors import Unauthenticated

HEADER = "x-allm-identity"
VERSION = "v2"
LIFETIME_SECONDS = 60
INFERENCE = "inference"  # to use models
ADMIN = "admin"  # to register, remove, load and unload them, and to make keys
SERVICE = "service"  # only for our own services: to report, and to follow models
WATCH_KEYS = "watch-keys"  # only for our own authorizer: to follow the API keys
WATCH_MEMORY = "watch-memory"  # to look at a service's memory; all that a service of models gets of `admin`
SCOPES = frozenset((INFERENCE, ADMIN, SERVICE, WATCH_KEYS, WATCH_MEMORY))
# The scopes of our own processes, by role: a key may sign subjects `service:<role>/...` with these.
OWN_SCOPES: Mapping[str, frozenset[str]] = {
    AUTHORIZER: frozenset((WATCH_KEYS,)),
    OPERATOR: frozenset((ADMIN,)),
    **dict.fromkeys(SERVICES, frozenset((SERVICE,))),
}
_OWN = "service:"
# gRPC allows 8 KiB of metadata per call, including other headers. This bounds the list of models.
MAX_CHARACTERS = 6144


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller and its permissions."""

    subject: str  # the id of a key, or `service:<role>/<replica>`
    scopes: frozenset[str]  # scopes outside SCOPES grant nothing
    models: tuple[str, ...] = ()  # allowed ids, aliases or `prefix*`; empty: all
    tokens_per_minute: int = 0  # 0: no limit
    expires: int = 0  # seconds since the epoch; refused from then on
    concurrent_requests: int = 0  # to models, in each process; 0: no limit; same for the next two fields
    bytes_in_flight: int = 0  # of bodies of requests to models, in each process
    stored_bytes: int = 0  # of stored responses

    def may_use(self, *names: str) -> bool:
        """Returns whether one of a model's names, its id and its aliases, is allowed."""
        return not self.models or any(_matches(pattern, name) for pattern in self.models for name in names)


# The caller if no keys are required: ALLM_AUTH is `none` or `open`.
ANONYMOUS = Identity("anonymous", SCOPES)


def own_identity(role: str, name: str, expires: int = 0) -> Identity:
    """Returns the identity of one of our own processes. `name`: of its replica, or of the command."""
    return Identity(f"{_OWN}{role}/{name}", OWN_SCOPES[role], expires=expires)


def own_role(identity: Identity) -> str:
    """Returns the role of one of our own processes; empty for a caller."""
    return identity.subject.removeprefix(_OWN).partition("/")[0] if identity.subject.startswith(_OWN) else ""


def may_sign(roles: Iterable[str], identity: Identity) -> bool:
    """Returns whether a key with these roles may sign an identity.

    A role may sign its own processes. The authorizer may also sign every caller, but none with a scope that only our
    own processes have.
    """
    if identity.subject.startswith(_OWN):
        role = own_role(identity)
        return role in roles and identity.scopes <= OWN_SCOPES[role]
    return AUTHORIZER in roles and not identity.scopes & {SERVICE, WATCH_KEYS}


def sign(identity: Identity, key: SigningKey) -> str:
    """Returns the header's value. Raises ValueError if the list of models is too long for a header."""
    claims = {
        "sub": identity.subject,
        "scopes": sorted(identity.scopes),
        "models": identity.models,
        "tpm": identity.tokens_per_minute,
        "exp": identity.expires,
        "conc": identity.concurrent_requests,
        "bytes": identity.bytes_in_flight,
        "stored": identity.stored_bytes,
    }
    body = base64url(json.dumps(claims, separators=(",", ":")).encode())
    signed = f"{VERSION}.{key.id}.{body}"
    text = f"{signed}.{base64url(key.key.sign(signed.encode()))}"
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"an identity has at most {MAX_CHARACTERS} characters, not {len(text)}: name fewer models")
    return text


def verify(text: str, keys: PublicKeys, now: float) -> Identity:
    """Returns the identity in a header's value. `now`: seconds since the epoch.

    Raises:
        Unauthenticated: it is of another version, not signed with one of these keys or not by the right role, changed,
            or expired. The message does not repeat the text, which is a credential while it is valid.
    """
    if len(text) > MAX_CHARACTERS:
        raise Unauthenticated(f"{HEADER} is longer than {MAX_CHARACTERS} characters.")
    version, _, rest = text.partition(".")
    if version != VERSION:
        raise Unauthenticated(f"{HEADER} does not have version {VERSION}.")
    signed, _, signature = text.rpartition(".")
    key_id, _, body = rest.rpartition(".")[0].partition(".")
    key = keys.get(key_id)
    if key is None:
        raise Unauthenticated(f"{HEADER} names a key that {PUBLIC_KEYS_FILE} does not list.")
    try:
        key.key.verify(unbase64url(signature), signed.encode(errors="replace"))
    except InvalidSignature:
        raise Unauthenticated(f"{HEADER} has a wrong signature.") from None
    identity = _read(body)
    if not may_sign(key.roles, identity):
        roles = ", ".join(sorted(key.roles))
        raise Unauthenticated(f"{HEADER} is signed with a key of the role {roles}, which may not sign this identity.")
    if not now < identity.expires:
        raise Unauthenticated(
            f"{HEADER} has expired: every call needs a new one. If this happens to every call, the clocks of the "
            "machines differ."
        )
    return identity


def _read(body: str) -> Identity:
    """Parses the signed claims. They come from our own processes, but possibly of another version."""
    try:
        claims = json.loads(unbase64url(body))
    except (ValueError, RecursionError):
        raise Unauthenticated(f"{HEADER} cannot be read.") from None
    if not isinstance(claims, dict):
        raise Unauthenticated(f"{HEADER} cannot be read.")
    subject, expires = claims.get("sub"), claims.get("exp")
    scopes, models = claims.get("scopes"), claims.get("models", [])
    limits = [claims.get(name, 0) for name in ("tpm", "conc", "bytes", "stored")]
    if not (isinstance(subject, str) and subject and _is_count(expires) and all(map(_is_count, limits))):
        raise Unauthenticated(f"{HEADER} lacks 'sub' or 'exp', or has a limit that is not a number.")
    tokens, *others = limits
    # A string is a sequence, too: taken for a list it would be one of single characters.
    if not (_is_names(scopes) and _is_names(models)):
        raise Unauthenticated(f"{HEADER} has 'scopes' or 'models' that are not lists of names.")
    return Identity(subject, frozenset(scopes), tuple(models), tokens, expires, *others)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _is_names(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) and name for name in value)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
