"""Private files and folders, new ones and those of older releases."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from services.storage.private_files import make_private, private_folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_and_an_old_one_are_private(tmp_path: Path) -> None:
    for _ in range(2):
        private_folder(tmp_path / "home")
        assert mode(tmp_path / "home") == 0o700
        (tmp_path / "home").chmod(0o755)


def test_folders_with_other_purposes_keep_their_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sticky, users = tmp_path / "sticky", tmp_path / "users"
    sticky.mkdir()
    sticky.chmod(0o1777)
    users.mkdir()
    users.chmod(0o755)
    monkeypatch.setenv("HOME", str(users))
    private_folder(sticky)
    private_folder(users)
    assert (mode(sticky), mode(users)) == (0o1777, 0o755)


def test_only_the_permissions_of_others_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    for before, after in ((0o644, 0o600), (0o777, 0o700), (0o400, 0o400)):
        path.chmod(before)
        make_private(path)
        assert mode(path) == after
    make_private(tmp_path / "missing")


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser may give files away")
def test_what_another_user_owns_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    path.chmod(0o644)
    os.chown(path, 12345, 12345)
    make_private(path)
    assert mode(path) == 0o644
