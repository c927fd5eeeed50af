"""An online backup of the catalog's file, by SQLite's backup API: the catalog may run and write meanwhile."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from services.catalog.database import APPLICATION_ID, FILE_NAME
from services.storage import sync


class BackupError(OSError):
    """No backup was made; the message gives the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A finished backup."""

    size: int  # bytes
    models: int
    keys: int  # revoked ones included


def back_up(home: Path, target: Path, *, replace: bool) -> Backup:
    """Copies the catalog of `home` to `target`, which appears only when it is complete and was checked.

    `replace`: whether an existing file may be replaced. Raises BackupError.
    """
    source = home / FILE_NAME
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        if not source.is_file():
            raise BackupError(f"{home} has no catalog: on the catalog's machine, set ALLM_HOME to its folder")
        _check_free(source, target, replace=replace)
        os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            done = _copy(source, partial)
            sync(partial)
            _check_free(source, target, replace=replace)  # somebody else may have made it meanwhile
            partial.replace(target)
            sync(target.parent)
        finally:
            partial.unlink(missing_ok=True)
    except sqlite3.Error as error:
        raise BackupError(f"{source} cannot be copied to {target}: {error}") from error
    except OSError as error:
        if isinstance(error, BackupError):
            raise
        raise BackupError(f"the backup cannot be made: {error.filename or target}: {error.strerror}") from error
    return done


def _check_free(source: Path, target: Path, *, replace: bool) -> None:
    """Raises BackupError if `target` exists and must not be replaced."""
    own = {source.name + suffix for suffix in ("", "-wal", "-shm", "-journal", ".lock")}
    if target.name in own and target.parent.resolve() == source.parent.resolve():
        raise BackupError(f"{target} belongs to the running catalog: choose another name or folder")
    if not os.path.lexists(target):
        return
    if not target.is_file():
        raise BackupError(f"{target} is not a file: name a file for the backup")
    if not replace:
        raise BackupError(f"{target} exists: choose another name, or replace it with --force")


def _copy(source: Path, target: Path) -> Backup:
    """Copies one state of the file, and checks the copy."""
    with (  # `rw`, although nothing is written: a connection that may not write would leave a -wal and a -shm behind
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as read,
        closing(sqlite3.connect(target, isolation_level=None)) as written,
    ):
        read.backup(written)  # in one step: one state, and the catalog's writes do not wait
        written.execute("PRAGMA journal_mode = DELETE")  # one file; the catalog switches a restored one back
        (owner,) = written.execute("PRAGMA application_id").fetchone()
        if owner != APPLICATION_ID:
            raise BackupError(f"{source} is not a catalog of allm")
        (found,) = written.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok" or written.execute("PRAGMA foreign_key_check").fetchone():
            raise BackupError(f"{source} is damaged ({found}): no backup was made")
        return Backup(target.stat().st_size, _rows(written, "models"), _rows(written, "api_keys"))


def _rows(connection: sqlite3.Connection, table: str) -> int:
    """Counts the rows of a table; 0 if an older allm wrote the file and did not know the table."""
    (exists,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) if exists else 0  # noqa: S608
