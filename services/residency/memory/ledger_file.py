"""The ledger's SQLite file: its tables, and an error message for each way in which the file can fail.

An owner is alive while it locks a file of its own. Unlike a process id this works across containers, and the kernel
releases the lock however the process ends. A stopped process (SIGSTOP) counts as alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from services.errors import Internal
from services.residency.memory.reservation import Reservation, ResidentKey
from services.storage import DatabaseUnusable, SharedSqliteFile, Work

T = TypeVar("T")
PRIMARY = 0xFF  # masks the primary code of an extended SQLite error code
VERSION = 1
SCHEMA = """
CREATE TABLE owners (
    id TEXT PRIMARY KEY,
    address TEXT NOT NULL,
    replica TEXT NOT NULL
);
CREATE TABLE reservations (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL REFERENCES owners (id) ON DELETE CASCADE,
    model_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    runtime TEXT NOT NULL,
    places TEXT NOT NULL, -- {pool: bytes} as JSON
    measured TEXT NOT NULL, -- the same
    loading INTEGER NOT NULL,
    busy INTEGER NOT NULL,
    pinned INTEGER NOT NULL,
    last_used REAL NOT NULL
)
"""
_SELECT = """
SELECT r.id, o.address, o.replica, r.model_id, r.generation, r.runtime, r.places, r.measured, r.loading, r.busy,
       r.pinned, r.last_used, r.owner
FROM reservations r JOIN owners o ON o.id = r.owner ORDER BY r.last_used, r.id
"""


class OwnerFile:
    """This process's lock file. Its name is unique and never used again after the release."""

    def __init__(self, path: Path) -> None:
        """Creates and locks the file. Raises OSError."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Removes and unlocks the file."""
        remove(self._path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lives(path: Path) -> bool:
    """Returns whether the file's process lives; True if unknown, so that memory is not given away twice."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two concurrent checks do not block each other
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove(path: Path) -> None:
    """Removes a dead process's file, if possible."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


class LedgerFile(SharedSqliteFile):
    """An open ledger file. The caller closes it."""

    application_id = 0x616C6C64  # `alld`
    noun = "ledger"
    remedy = "stop allm and delete the folder; it contains only the reservations of loaded models"
    busy_milliseconds = 5_000  # a transaction takes a millisecond: whatever holds the lock this long hangs
    pragmas = ("foreign_keys = ON",)

    def __init__(self, path: Path) -> None:
        super().__init__(path, "ledger", SCHEMA, VERSION)
        self._identity = (0, 0)

    async def open(self) -> None:
        """Opens or creates the file. Raises DatabaseUnusable."""
        await self._opened()

    def _open(self) -> None:
        try:
            super()._open()
        except OSError as problem:
            if isinstance(problem.__cause__, sqlite3.Error):
                raise DatabaseUnusable(self._words(problem.__cause__)) from problem.__cause__
            if isinstance(problem, DatabaseUnusable):
                raise
            raise DatabaseUnusable(f"{self._path} cannot be made: {problem} (ALLM_HOME)") from problem
        self._identity = self._found()

    def _found(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (-1, -1)
        return (found.st_dev, found.st_ino)

    def _transaction(self, work: Work[T], kind: str) -> T:
        """Adds the ledger's error messages. Fails if the file was replaced: others would not see its reservations."""
        if self._connection and self._found() != self._identity:
            raise Internal(f"{self._path} was deleted or replaced while allm ran: restart allm")
        try:
            return super()._transaction(work, kind)
        except Internal as problem:
            if isinstance(problem.__cause__, sqlite3.Error):
                raise Internal(self._words(problem.__cause__)) from problem.__cause__
            raise

    def _words(self, error: sqlite3.Error) -> str:
        code = getattr(error, "sqlite_errorcode", 0) & PRIMARY
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            seconds = self.busy_milliseconds // 1000
            return f"{self._path} was held by another process for {seconds} seconds: a service may be stopped, or hang"
        if code == sqlite3.SQLITE_FULL:
            return f"{self._path} cannot be written: the disk is full (ALLM_HOME)"
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._advice(f"is damaged ({error})")
        return f"{self._path} cannot be used ({error}): check the disk and the permissions of ALLM_HOME"


def owners(connection: sqlite3.Connection) -> list[str]:
    """Returns the ids of all owners."""
    return [owner for (owner,) in connection.execute("SELECT id FROM owners")]


def add_owner(connection: sqlite3.Connection, owner: str, address: str, replica: str) -> None:
    """Adds an owner unless it exists."""
    connection.execute("INSERT OR IGNORE INTO owners VALUES (?, ?, ?)", (owner, address, replica))


def drop_owners(connection: sqlite3.Connection, gone: Iterable[str]) -> None:
    """Drops owners and their reservations."""
    connection.executemany("DELETE FROM owners WHERE id = ?", [(owner,) for owner in gone])


def put(connection: sqlite3.Connection, owner: str, rows: Iterable[Reservation]) -> None:
    """Writes reservations, with pools as devices; replaces rows of the same id."""
    values = [
        (
            *(row.id, owner, *row.key, json.dumps(dict(row.devices)), json.dumps(dict(row.measured))),
            *(row.loading, row.busy, row.pinned, row.last_used),
        )
        for row in rows
    ]
    connection.executemany("INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)


def drop(connection: sqlite3.Connection, ids: Iterable[str]) -> None:
    """Drops reservations."""
    connection.executemany("DELETE FROM reservations WHERE id = ?", [(one,) for one in ids])


def read(connection: sqlite3.Connection) -> list[tuple[str, Reservation]]:
    """Returns (owner, reservation), the least recently used first, with pools as devices."""
    return [
        (
            row[12],
            Reservation(
                id=row[0],
                address=row[1],
                replica=row[2],
                key=ResidentKey(row[3], row[4], row[5]),
                devices=json.loads(row[6]),
                measured=json.loads(row[7]),
                loading=bool(row[8]),
                busy=bool(row[9]),
                pinned=bool(row[10]),
                last_used=row[11],
            ),
        )
        for row in connection.execute(_SELECT)
    ]
