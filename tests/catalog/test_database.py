"""The SQLite file: migrations, one owner, atomic transactions, and clear refusals."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from services.catalog.database import MIGRATIONS, CatalogDatabase, DatabaseUnusable
from services.errors import Internal

FIRST = "CREATE TABLE words (word TEXT PRIMARY KEY) STRICT"
SECOND = "ALTER TABLE words ADD COLUMN length INTEGER; UPDATE words SET length = length(word)"


def put(word: str):
    return lambda connection: connection.execute("INSERT INTO words (word) VALUES (?)", (word,))


def words(connection: sqlite3.Connection) -> list[str]:
    return [word for (word,) in connection.execute("SELECT word FROM words ORDER BY word")]


async def refused(path: Path, *migrations: str) -> str:
    with pytest.raises(DatabaseUnusable) as caught:
        await CatalogDatabase.open(path, migrations or (FIRST,))
    assert str(path) in str(caught.value), "the file is named"
    return str(caught.value)


async def test_a_new_file_is_made_with_its_folder_and_safe_settings(tmp_path: Path) -> None:
    database = await CatalogDatabase.open(tmp_path / "new" / "c.db", MIGRATIONS)

    def settings(connection: sqlite3.Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "user_version")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await database.read(settings) == ["wal", 2, 1, len(MIGRATIONS)]
    assert await database.read(lambda connection: connection.execute("PRAGMA busy_timeout").fetchone()[0]) == 5000
    await database.close()


async def test_written_data_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    database = await CatalogDatabase.open(path, (FIRST,))
    await database.write(put("a"))
    copied = tmp_path / "copy.db"
    copied.write_bytes(path.read_bytes())  # the file alone has every change, also while it is open
    with closing(sqlite3.connect(copied)) as copy:
        assert words(copy) == ["a"]
    await database.close()
    database = await CatalogDatabase.open(path, (FIRST,))
    assert await database.read(words) == ["a"]
    await database.close()


async def test_later_migrations_are_applied_once_to_existing_data(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    database = await CatalogDatabase.open(path, (FIRST,))
    await database.write(put("four"))
    await database.close()
    for _ in range(2):
        database = await CatalogDatabase.open(path, (FIRST, SECOND))
        assert await database.read(lambda c: c.execute("SELECT * FROM words").fetchall()) == [("four", 4)]
        await database.close()


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    database = await CatalogDatabase.open(path, (FIRST,))
    await database.write(put("a"))
    await database.close()
    broken = "DELETE FROM words; CREATE TABLE words (again TEXT)"
    assert "already exists" in await refused(path, FIRST, broken)
    database = await CatalogDatabase.open(path, (FIRST,))
    assert await database.read(words) == ["a"]
    await database.close()


async def test_a_transaction_that_fails_changes_nothing(tmp_path: Path) -> None:
    database = await CatalogDatabase.open(tmp_path / "c.db", (FIRST,))

    def two(connection: sqlite3.Connection) -> None:
        put("b")(connection)
        put("b")(connection)

    with pytest.raises(sqlite3.IntegrityError):
        await database.write(two)
    with pytest.raises(Internal, match=r"c\.db cannot be used: no such table"):
        await database.write(lambda connection: connection.execute("DELETE FROM absent"))
    await database.write(put("c"))
    assert await database.read(words) == ["c"]
    await database.close()


async def test_a_newer_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    database = await CatalogDatabase.open(path, (FIRST, SECOND))
    await database.close()
    before = path.read_bytes()
    words_ = await refused(path, FIRST)
    assert "newer allm (schema 2; this one knows 1)" in words_
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(b"not a database at all, but long enough to look at" * 100)
    before = path.read_bytes()
    assert "put a backup in its place" in await refused(path)
    assert path.read_bytes() == before


async def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    database = await CatalogDatabase.open(path, (FIRST,))

    def fill(connection: sqlite3.Connection) -> None:
        for number in range(2000):
            put(f"word {number}")(connection)

    await database.write(fill)
    await database.close()
    content = bytearray(path.read_bytes())
    content[4096:-4096] = os.urandom(len(content) - 2 * 4096)
    path.write_bytes(content)
    assert "put a backup in its place" in await refused(path)


FULL = """
import asyncio, resource, sys
from pathlib import Path
from services.catalog.database import CatalogDatabase
from services.catalog.database import MIGRATIONS
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    asyncio.run(CatalogDatabase.open(Path(sys.argv[1]), MIGRATIONS))
except OSError as error:
    print(error)
"""


async def test_full_disk_error_does_not_suggest_moving_the_database(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", FULL, path, stdout=asyncio.subprocess.PIPE)
    said = (await child.communicate())[0].decode()
    assert f"{path} cannot be used: " in said
    assert "nothing in it was changed" in said
    assert "move it away" not in said


async def test_rows_that_point_nowhere_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    await (await CatalogDatabase.open(path, MIGRATIONS)).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO names VALUES ('m', 7, 0)")
    assert "the table names points to rows that are not there" in await refused(path, *MIGRATIONS)


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE theirs (x)")
    assert "is not a catalog of allm" in await refused(path)


async def test_only_one_process_has_it(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    database = await CatalogDatabase.open(path, (FIRST,))
    assert "in use by another catalog" in await refused(path)
    await database.close()
    await (await CatalogDatabase.open(path, (FIRST,))).close()


async def test_a_killed_owner_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    program = (
        "import asyncio, os, pathlib, signal, sys\n"
        "from services.catalog.database import CatalogDatabase\n"
        f"asyncio.run(CatalogDatabase.open(pathlib.Path(sys.argv[1]), ({FIRST!r},)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(path))
    assert await process.wait() == -9
    await (await CatalogDatabase.open(path, (FIRST,))).close()


async def test_a_closed_database_takes_nothing(tmp_path: Path) -> None:
    database = await CatalogDatabase.open(tmp_path / "c.db", (FIRST,))
    await database.close()
    with pytest.raises(RuntimeError):
        await database.write(put("late"))
