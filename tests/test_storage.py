"""Private files, old and new, and SQLite files: private, with a bounded log, and whole after they are closed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from services.auth.token_ledger import TokenFile
from services.catalog.database import MIGRATIONS, CatalogDatabase
from services.residency.memory.ledger_file import LedgerFile
from services.storage import WAL_BYTES, WAL_PAGES, SqliteFile, make_private, private_folder
from services.text.responses.sqlite_store import ResponseDatabase


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


KINDS = ("catalog", "ledger", "responses", "tokens")


async def opened(kind: str, path: Path) -> SqliteFile:
    if kind == "catalog":
        return await CatalogDatabase.open(path, MIGRATIONS)
    if kind == "responses":
        return await ResponseDatabase.open(path)
    if kind == "tokens":
        return await TokenFile.open(path)
    ledger = LedgerFile(path)
    await ledger.open()
    return ledger


def add_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE numbers (number INTEGER, filling TEXT)")
    connection.executemany("INSERT INTO numbers VALUES (?, ?)", [(number, "x" * 1000) for number in range(100)])


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM numbers").fetchone()[0])


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


@pytest.mark.parametrize("kind", KINDS)
async def test_files_of_an_older_release_are_no_longer_readable_for_others(kind: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = await opened(kind, home / "f.db")
    second = await opened(kind, home / "f.db") if kind != "catalog" else first
    await first.write(add_table)
    found = modes(home)
    assert {"f.db", "f.db-wal", "f.db-shm"} <= set(found)
    assert found.pop("home") == 0o700
    assert set(found.values()) == {0o600}
    # As if that release had been killed: its write-ahead log stays.
    old = tmp_path / "old"
    shutil.copytree(home, old)
    old.chmod(0o755)
    for path in old.iterdir():
        path.chmod(0o644)
    again = await opened(kind, old / "f.db")
    assert await again.read(count) == 100
    found = modes(old)
    assert found.pop("old") == 0o700
    assert set(found.values()) == {0o600}
    for file in {again, first, second}:
        await file.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_after_closing_the_file_alone_is_whole_even_if_another_has_it_open(kind: str, tmp_path: Path) -> None:
    file = await opened(kind, tmp_path / "f.db")
    await file.write(add_table)
    with closing(sqlite3.connect(tmp_path / "f.db")) as other:
        assert count(other) == 100
        await file.close()
        assert (tmp_path / "f.db-wal").stat().st_size == 0
        shutil.copyfile(tmp_path / "f.db", tmp_path / "copy.db")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert count(copy) == 100


@pytest.mark.parametrize("kind", KINDS)
async def test_the_log_stays_bounded_and_shrinks_after_a_long_reader(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "f.db"
    file = await opened(kind, path)
    await file.write(add_table)

    def rewrite(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE numbers SET filling = ?, number = number + 1", ("y" * 4000,))

    for _ in range(50):
        await file.write(rewrite)
    log = path.with_name("f.db-wal")
    assert log.stat().st_size < 2 * WAL_PAGES * 4200 < 2 * WAL_BYTES
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        count(reader)
        while log.stat().st_size < 2 * WAL_BYTES:
            await file.write(rewrite)
    for _ in range(2):  # the first moves the content, the second begins the log again
        await file.write(rewrite)
    assert log.stat().st_size <= WAL_BYTES
    await file.close()
