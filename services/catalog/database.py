"""The catalog's SQLite file: its schema and migrations, opened by one process at a time, written in whole transactions.

A write is on disk once it returns (synchronous=FULL).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from services.storage import DatabaseUnusable, SqliteFile, make_private, private_folder

FILE_NAME = "catalog.db"  # in ALLM_HOME
APPLICATION_ID = 0x616C6C6D  # `allm`, in the file's header
BUSY_MILLISECONDS = 5000  # how long a reader of the file, such as a backup, may block a write
PRIMARY = 0xFF  # mask from an extended SQLite error code to the primary one
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
# From an empty database to the current schema. A released migration never changes: only new ones follow.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE models (
        serial INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given again: tells a model from an earlier one of its id
        id TEXT NOT NULL UNIQUE,
        source TEXT NOT NULL,                      -- as registered
        generation INTEGER NOT NULL CHECK (generation > 0),
        facts TEXT NOT NULL,                       -- JSON, see registration.py; so are the next two
        manifest TEXT NOT NULL,
        artifacts TEXT NOT NULL,
        fingerprint TEXT NOT NULL,                 -- of local files, to see that they were changed; empty for the hub
        keep_loaded INTEGER NOT NULL CHECK (keep_loaded IN (0, 1)),
        runtime TEXT NOT NULL,                     -- asked for by an operator, or empty
        unloads INTEGER NOT NULL CHECK (unloads >= 0),
        created INTEGER NOT NULL,                  -- seconds since the epoch; so is the next
        updated INTEGER NOT NULL
    ) STRICT;

    -- Ids and aliases in one table, so that the database itself refuses a name that is taken, whatever it is taken as.
    CREATE TABLE names (
        name TEXT NOT NULL PRIMARY KEY,
        model INTEGER NOT NULL REFERENCES models (serial) ON DELETE CASCADE,
        place INTEGER NOT NULL CHECK (place >= 0), -- 0: the id; aliases in their order
        UNIQUE (model, place)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE benchmarks (
        model INTEGER NOT NULL REFERENCES models (serial) ON DELETE CASCADE,
        runtime TEXT NOT NULL,
        device TEXT NOT NULL,
        tokens_per_second REAL NOT NULL,
        first_token_seconds REAL NOT NULL,
        peak_memory INTEGER NOT NULL,              -- bytes; 0: not known
        recorded INTEGER NOT NULL,                 -- seconds since the epoch
        PRIMARY KEY (model, runtime, device)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE models ADD COLUMN parts TEXT NOT NULL DEFAULT '[]'; -- JSON, see registration.py; so is the next
    ALTER TABLE models ADD COLUMN image_defaults TEXT NOT NULL DEFAULT '{}';
    """,
    """
    ALTER TABLE models ADD COLUMN declared TEXT NOT NULL DEFAULT ''; -- the entry of the models file, see models_file.py
    """,
    """
    CREATE TABLE api_keys (
        id TEXT NOT NULL PRIMARY KEY,
        hash BLOB NOT NULL UNIQUE CHECK (length(hash) = 32), -- SHA-256; the key itself is nowhere
        hint TEXT NOT NULL,                        -- its first characters
        name TEXT NOT NULL,
        scopes TEXT NOT NULL,                      -- JSON, a list of names; so is the next
        models TEXT NOT NULL,
        requests_per_minute INTEGER NOT NULL CHECK (requests_per_minute >= 0),
        tokens_per_minute INTEGER NOT NULL CHECK (tokens_per_minute >= 0),
        created INTEGER NOT NULL,                  -- seconds since the epoch; so are the next two
        expires INTEGER NOT NULL,                  -- 0: never
        revoked INTEGER NOT NULL                   -- 0: it was not
    ) STRICT;
    """,
    # Stores the registration's runtime next to the last one asked for: so far only the models file could set it.
    """
    ALTER TABLE models ADD COLUMN registered_runtime TEXT NOT NULL DEFAULT ''; -- asked for at registration, or empty
    ALTER TABLE models ADD COLUMN engine TEXT NOT NULL DEFAULT '{}'; -- JSON, see registration.py
    UPDATE models SET registered_runtime = coalesce(json_extract(declared, '$.runtime'), '') WHERE json_valid(declared);
    """,
    """
    ALTER TABLE api_keys ADD COLUMN concurrent_requests INTEGER NOT NULL DEFAULT 0; -- 0: no limit
    """,
    """
    ALTER TABLE api_keys ADD COLUMN bytes_in_flight INTEGER NOT NULL DEFAULT 0; -- 0: no limit; so is the next
    ALTER TABLE api_keys ADD COLUMN stored_bytes INTEGER NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE machine_samples (
        time INTEGER PRIMARY KEY,                  -- milliseconds since the epoch
        sample TEXT NOT NULL                       -- JSON, see machine_samples.py
    ) STRICT;
    """,
)


class CatalogDatabase(SqliteFile):
    """An open database. Closing it lets another process open it."""

    work_errors = (sqlite3.IntegrityError,)  # raised for a name that is taken

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        super().__init__(path, "catalog-database")
        self._migrations = tuple(migrations)
        self._lock = -1

    @classmethod
    async def open(cls, path: Path, migrations: Sequence[str]) -> CatalogDatabase:
        """Opens or creates the file and migrates it to the current schema.

        Raises:
            DatabaseUnusable: another process has it, it is damaged, it is not the catalog's, or a newer allm wrote it.
        """
        database = cls(path, migrations)
        await database._opened()
        return database

    # --- in the thread, on open and close

    def _open(self) -> None:
        private_folder(self._path.parent)
        self._take_lock()
        try:
            connection = self._connect()
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
            self._recognise(connection)
            self._use_log(connection, pages=1)  # people copy this file; commits are rare
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            self._migrate(connection)
        except sqlite3.Error as error:
            # With other codes the file may be intact: a full disk is no reason to move it away.
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & PRIMARY not in DAMAGED:
                raise DatabaseUnusable(f"{self._path} cannot be used: {error}; nothing in it was changed") from error
            raise DatabaseUnusable(self._advice(f"cannot be read ({error})")) from error

    def _take_lock(self) -> None:
        """Takes the lock, which ends with the process in any case."""
        path = self._path.with_name(f"{self._path.name}.lock")
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        make_private(path)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DatabaseUnusable(
                f"{self._path} is in use by another catalog: stop that one, or set another ALLM_HOME"
            ) from error

    def _recognise(self, connection: sqlite3.Connection) -> None:
        """Rejects a file that is damaged, not ours, or newer than this code, before any change."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if owner != APPLICATION_ID and (owner or version or tables):
            raise DatabaseUnusable(f"{self._path} is not a catalog of allm: move it away, or set another ALLM_HOME")
        if version > len(self._migrations):
            raise DatabaseUnusable(
                f"{self._path} was written by a newer allm (schema {version}; this one knows {len(self._migrations)}): "
                "start that version, or set another ALLM_HOME"
            )
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise DatabaseUnusable(self._advice(f"is damaged ({found})"))
        if broken := connection.execute("PRAGMA foreign_key_check").fetchone():
            raise DatabaseUnusable(
                self._advice(f"is damaged (the table {broken[0]} points to rows that are not there)")
            )

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Runs each step in its own transaction, together with the version number that marks it as done."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for number, script in enumerate(self._migrations[version:], version + 1):
            marks = f"PRAGMA user_version = {number}; PRAGMA application_id = {APPLICATION_ID};"
            try:
                connection.executescript(f"BEGIN IMMEDIATE; {script}; {marks} COMMIT;")
            except sqlite3.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _advice(self, what: str) -> str:
        remedy = "put a backup in its place (docs/resilience.md), or move it away and register the models again"
        return f"{self._path} {what}: {remedy}"

    def _close(self) -> None:
        super()._close()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


T = TypeVar("T")


class WholeChanges:
    """Runs changes in order of arrival."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs `work` after all earlier changes, even if the caller is cancelled. Raises what it raises."""

        async def alone() -> T:
            async with self._turn:
                return await work()

        task = asyncio.create_task(alone())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Waits for running changes."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
