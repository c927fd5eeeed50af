"""The keys that sign and verify identities: Ed25519 private keys in PEM files, and the file of all public keys.

A private key belongs to one role, such as `text`, and only that role's processes hold it. Its id is its public key. A
line of the file of public keys is such an id and the roles that it may speak for, separated by commas:

    11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo text

Several lines may name one role, so that an old key and its successor are valid together.
"""

from __future__ import annotations

import base64
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from services.storage import replace_file

log = logging.getLogger(__name__)

KEY_FILE = "ALLM_IDENTITY_KEY_FILE"
PUBLIC_KEYS_FILE = "ALLM_IDENTITY_PUBLIC_KEYS_FILE"
PUBLIC_NAME = "public.keys"
AUTHORIZER = "authorizer"  # signs the identities of callers
OPERATOR = "operator"  # the commands of the deployment's owner, and `allm serve`
SERVICES = ("text", "audio", "image")
ROLES = (AUTHORIZER, OPERATOR, *SERVICES)
PRIVATE, PUBLIC = 0o600, 0o644  # modes of the files
MAX_BYTES = 64 * 1024
ID_BYTES = 32
_HEAD = "# Public keys of identities: a key and the roles that it may speak for. A role may have several keys.\n"


class KeysUnusable(OSError):
    """A file of keys cannot be used; the message names the setting and the remedy."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key, and its id."""

    key: Ed25519PrivateKey
    id: str

    @classmethod
    def of(cls, key: Ed25519PrivateKey) -> SigningKey:
        """Returns the key with its id."""
        return cls(key, base64url(key.public_key().public_bytes_raw()))


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key, and the roles that it may speak for."""

    key: Ed25519PublicKey
    roles: frozenset[str]


PublicKeys = Mapping[str, PublicKey]  # by id


class PublicKeyFile:
    """The file of public keys, read again when it has changed. Blocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None

    def read(self) -> PublicKeys:
        """Returns the keys.

        Raises:
            KeysUnusable: the file cannot be read, is too long, names no key, or has a line of another form.
        """
        try:
            self._stamp = self._now()
            return parse_public_keys(_bytes(self._path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise KeysUnusable(f"{PUBLIC_KEYS_FILE}={self._path}: the public keys cannot be read: {reason}") from error

    def news(self) -> PublicKeys | None:
        """Returns the keys if they have changed since the last call; None also while they cannot be used."""
        stamp = None
        with contextlib.suppress(OSError):
            stamp = self._now()
        if stamp == self._stamp:
            return None
        self._stamp = stamp  # also of a file that cannot be used: one warning is enough
        try:
            found = self.read()
        except KeysUnusable as error:
            log.warning("the public keys cannot be read: the previous ones stay valid", extra={"reason": str(error)})
            return None
        log.info("the public keys have changed", extra={"keys": len(found)})
        return found

    def _now(self) -> tuple[int, int, int]:
        state = self._path.stat()
        return state.st_ino, state.st_mtime_ns, state.st_size


def parse_public_keys(content: bytes) -> PublicKeys:
    """Returns the keys in a file's content. Raises ValueError, which names the line."""
    found: dict[str, PublicKey] = {}
    for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        raw = unbase64url(words[0])
        roles = frozenset(words[1].split(",")) if len(words) == 2 else frozenset()
        if len(raw) != ID_BYTES or not roles or not roles.issubset(ROLES):
            raise ValueError(
                f"line {number} must be a public key and its roles, such as 'KEY text'; roles are {', '.join(ROLES)}"
            )
        known = found[words[0]].roles if words[0] in found else frozenset()
        found[words[0]] = PublicKey(Ed25519PublicKey.from_public_bytes(raw), roles | known)
    if not found:
        raise ValueError("it contains no key; `allm identity create` makes keys")
    return found


def read_key(path: Path) -> SigningKey:
    """Returns the private key in a PEM file.

    Raises:
        KeysUnusable: the file cannot be read, or holds no Ed25519 private key.
    """
    try:
        key = serialization.load_pem_private_key(_bytes(path), None)
    except OSError as error:
        raise KeysUnusable(f"{KEY_FILE}={path}: the private key cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeysUnusable(
            f"{KEY_FILE}={path}: this is not an Ed25519 private key in PEM format; `allm identity create` makes keys"
        )
    return SigningKey.of(key)


def create_keys(key_files: Mapping[str, Path], public_file: Path) -> None:
    """Creates the missing private keys, and adds what the file of public keys lacks. `key_files`: by role.

    Only one process at a time may call it. Raises KeysUnusable.
    """
    if len(set(key_files.values())) < len(key_files):
        name = next(iter(key_files.values()))
        raise KeysUnusable(f"{KEY_FILE}={name}: every role needs a file of its own: write ROLE into the name")
    keys = {role: read_key(path) if path.exists() else _create_key(path) for role, path in key_files.items()}
    known = PublicKeyFile(public_file).read() if public_file.exists() else {}
    lines = [
        f"{key.id} {role}\n" for role, key in keys.items() if key.id not in known or role not in known[key.id].roles
    ]
    if not lines:
        return
    try:
        before = public_file.read_text(encoding="utf-8") if known else _HEAD
        replace_file(public_file, "".join((before, "" if before.endswith("\n") else "\n", *lines)).encode(), PUBLIC)
    except OSError as error:
        raise KeysUnusable(f"{PUBLIC_KEYS_FILE}={public_file}: it cannot be written: {error.strerror}") from error


def _create_key(path: Path) -> SigningKey:
    made = Ed25519PrivateKey.generate()
    pem = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        replace_file(path, pem, PRIVATE)
    except OSError as error:
        raise KeysUnusable(f"{KEY_FILE}={path}: the key cannot be created: {error.strerror}") from error
    return SigningKey.of(made)


def _bytes(path: Path) -> bytes:
    """Returns a small file's content. Raises OSError, or ValueError if it is too long."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    return content


def base64url(data: bytes) -> str:
    """Encodes bytes without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unbase64url(text: str) -> bytes:
    """Decodes what `base64url` returns; any other text, also one that others would accept, becomes empty."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return b""
    return data if base64url(data) == text else b""
