"""A backup of the catalog: taken while it is written, complete, private, checked, and restored."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from allm.models.v1 import model_service_pb2

from services.catalog.backup import BackupError, back_up
from services.catalog.database import MIGRATIONS, CatalogDatabase
from services.catalog.registration.registrations import read_all
from tests.catalog.catalog_process import connected, killed, launch, until_serving
from tests.catalog.model_files import gguf

BACKUPS = 20
# Writes pairs of rows, each in one transaction, until it is killed.
WRITER = """
import asyncio, sys
from pathlib import Path
from services.catalog.database import CatalogDatabase
from services.catalog.database import MIGRATIONS

COLUMNS = "hash, hint, name, scopes, models, requests_per_minute, tokens_per_minute, created, expires, revoked"
INSERT = f"INSERT INTO api_keys (id, {COLUMNS}) VALUES (?, ?, '', ?, '[]', '[]', 0, 0, ?, 0, 0)"

async def main():
    database = await CatalogDatabase.open(Path(sys.argv[1]) / "catalog.db", MIGRATIONS)
    for number in range(10**9):
        def put(connection):
            for half in ("a", "b"):
                hash = f"{half}{number}".rjust(32).encode()
                connection.execute(
                    INSERT,
                    (f"{half}{number}", hash, "x" * 2000, number),
                )
        await database.write(put)
        if number == 3:
            print("writing", flush=True)

asyncio.run(main())
"""


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="catalog-"))  # a socket path must be short
    yield folder
    shutil.rmtree(folder)


def made(home: Path) -> None:
    async def make() -> None:
        database = await CatalogDatabase.open(home / "catalog.db", MIGRATIONS)
        await database.close()

    asyncio.run(make())


def rows(file: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT id, created FROM api_keys ORDER BY created, id").fetchall()


def test_backups_during_writes_are_states_that_the_catalog_had(home: Path) -> None:
    made(home)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(home)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout
        assert writer.stdout.readline() == "writing\n"
        seen = [back_up(home, home / f"{number}.copy", replace=False).keys for number in range(BACKUPS)]
        assert writer.poll() is None, "it wrote to the end"
    finally:
        writer.kill()
        writer.communicate()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0], "the catalog wrote between the backups"
    for number, count in enumerate(seen):
        found = rows(home / f"{number}.copy")
        assert found == [(f"{half}{one}", one) for one in range(count // 2) for half in ("a", "b")], (
            "whole transactions"
        )


async def test_a_restored_backup_has_the_models_of_its_moment(home: Path) -> None:
    gguf(home / "files" / "m.gguf")
    source = f"file://{home}/files/m.gguf"
    process = await launch(home)
    try:
        await until_serving(process)
        async with connected(home) as models:
            request = model_service_pb2.RegisterModelRequest(id="kept", source=source, format="gguf")
            kept = (await models.RegisterModel(request)).model
            done = back_up(home, home / "b.db", replace=False)
            assert (done.models, done.keys) == (1, 0)
            request = model_service_pb2.RegisterModelRequest(id="later", source=source, format="gguf")
            await models.RegisterModel(request)
        process.terminate()
        await process.communicate()
        (home / "b.db").replace(home / "catalog.db")
        process = await launch(home)
        await until_serving(process)
        async with connected(home) as models:
            (found,) = (await models.ListModels(model_service_pb2.ListModelsRequest())).models
            assert (found.id, found.source, found.create_time) == (kept.id, kept.source, kept.create_time)
    except grpc.aio.AioRpcError as error:
        raise AssertionError(error.details()) from error
    finally:
        await killed(process)


def test_it_is_one_private_file_which_any_reader_can_open(home: Path) -> None:
    made(home)
    before = sorted(path.name for path in home.iterdir())
    folder = home / "backups"
    folder.mkdir()
    done = back_up(home, folder / "b.db", replace=False)
    assert [path.name for path in folder.iterdir()] == ["b.db"]
    assert stat.S_IMODE((folder / "b.db").stat().st_mode) == 0o600
    assert done.size == (folder / "b.db").stat().st_size > 0
    assert sorted(path.name for path in home.iterdir() if path != folder) == before, (
        "nothing is left beside the catalog"
    )
    with closing(sqlite3.connect(f"file:{folder}/b.db?immutable=1", uri=True)) as connection:
        assert read_all(connection) == []


def test_an_existing_file_is_replaced_only_on_request(home: Path) -> None:
    made(home)
    target = home / "b.db"
    target.write_text("precious")
    with pytest.raises(BackupError, match="exists: choose another name, or replace it with --force"):
        back_up(home, target, replace=False)
    assert target.read_text() == "precious"
    back_up(home, target, replace=True)
    assert rows(target) == []
    back_up(home, home / "catalog.db.bak", replace=False)
    (home / "catalog.db.bak").unlink()
    assert sorted(path.name for path in home.iterdir()) == ["b.db", "catalog.db", "catalog.db.lock"]


@pytest.mark.parametrize("name", ["catalog.db", "catalog.db-wal", "../{home}/catalog.db"])
def test_the_catalogs_own_files_are_never_replaced(home: Path, name: str) -> None:
    made(home)
    before = (home / "catalog.db").read_bytes()
    with pytest.raises(BackupError, match="belongs to the running catalog"):
        back_up(home, home / name.format(home=home.name), replace=True)
    assert (home / "catalog.db").read_bytes() == before


def test_a_damaged_catalog_gives_no_backup(home: Path) -> None:
    made(home)
    with (home / "catalog.db").open("r+b") as file:
        file.seek(2 * 4096)
        file.write(os.urandom(4096))
    with pytest.raises(BackupError, match=r"is damaged|malformed"):
        back_up(home, home / "b.db", replace=False)
    assert not (home / "b.db").exists()


def test_failures_are_reported(home: Path) -> None:
    with pytest.raises(BackupError, match="has no catalog: on the catalog's machine, set ALLM_HOME"):
        back_up(home, home / "b.db", replace=False)
    made(home)
    with pytest.raises(BackupError, match=r"the backup cannot be made: .*partial: No such file or directory"):
        back_up(home, home / "missing" / "b.db", replace=False)
    with pytest.raises(BackupError, match="is not a file"):
        back_up(home, home, replace=True)
    (home / "catalog.db").unlink()
    with closing(sqlite3.connect(home / "catalog.db")) as connection:
        connection.execute("CREATE TABLE foreign_table (x)")
    with pytest.raises(BackupError, match="is not a catalog of allm"):
        back_up(home, home / "b.db", replace=False)
    assert not (home / "b.db").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser may become another user")
def test_another_user_gets_the_reason(home: Path) -> None:
    made(home)
    os.seteuid(12345)
    try:
        with pytest.raises(BackupError, match=r"the backup cannot be made: .*catalog\.db: Permission denied"):
            back_up(home, Path("/tmp/b.db"), replace=False)  # noqa: S108 (it is not made)
    finally:
        os.seteuid(0)
