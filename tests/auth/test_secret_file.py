"""The secret file: created once, readable by its owner only."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.auth.secret_file import SecretUnusable, ensure_secret, read_secret


def test_it_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "home" / "identity.secret"
    secret = ensure_secret(path)
    assert len(bytes.fromhex(secret.decode())) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_secret(path) == read_secret(path) == secret
    assert [each.name for each in path.parent.iterdir()] == ["identity.secret"]


def test_those_that_start_together_agree(tmp_path: Path) -> None:
    path = tmp_path / "identity.secret"
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: ensure_secret(path), range(32)))
    assert set(found) == {read_secret(path)}


@pytest.mark.parametrize("content", [b"", b"short", b" " * 64, b"x" * 31 + b"\n\n", b"x" * 5000])
def test_a_secret_of_another_length_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.secret"
    path.write_bytes(content)
    for attempt in (read_secret, ensure_secret):
        with pytest.raises(SecretUnusable, match=r"ALLM_IDENTITY_SECRET_FILE=.*32 to 4096 bytes"):
            attempt(path)
    assert path.read_bytes() == content


def test_one_that_is_not_there_or_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match="cannot be read"):
        read_secret(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(SecretUnusable, match="cannot be made"):
        ensure_secret(tmp_path / "file" / "identity.secret")
