"""The secret that the gateway's authorizer and all services share, in a file that only its owner may read."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

SETTING = "ALLM_IDENTITY_SECRET_FILE"
MIN_BYTES = 32
MAX_BYTES = 4096


class SecretUnusable(OSError):
    """The file has no usable secret; the message names the remedy."""


def read_secret(path: Path) -> bytes:
    """Returns the secret in a file, without surrounding spaces.

    Raises:
        SecretUnusable: the file cannot be read, or is too short or too long.
    """
    try:
        with path.open("rb") as file:
            found = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SecretUnusable(f"{SETTING}={path}: the identity secret cannot be read: {error.strerror}") from error
    secret = found.strip()
    if len(secret) < MIN_BYTES or len(found) > MAX_BYTES:
        allowed = f"from {MIN_BYTES} to {MAX_BYTES} bytes"
        raise SecretUnusable(f"{SETTING}={path}: the identity secret must have {allowed}, as of `openssl rand -hex 32`")
    return secret


def ensure_secret(path: Path) -> bytes:
    """Returns the secret in a file; creates a missing file: 32 random bytes in hexadecimal, mode 0600.

    If several processes start together, one creates it, and the others read that. Raises SecretUnusable.
    """
    if not path.exists():
        try:
            _make(path)
        except OSError as error:
            raise SecretUnusable(f"{SETTING}={path}: the identity secret cannot be made: {error.strerror}") from error
    return read_secret(path)


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(MIN_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was faster: its secret counts
            os.link(fresh, path)
    finally:
        fresh.unlink()
