"""The SQLite file of stored responses: shared by the text replicas of one host, and written in whole transactions.

It knows no tables. SQLite itself makes replicas take turns.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from services.rpc.sqlite_file import DatabaseUnusable, SqliteFile

APPLICATION_ID = 0x616C7273  # `alrs`, in the file's header
BUSY_MILLISECONDS = 10_000  # how long one replica waits for another's transaction
OPEN_SECONDS = 10.0  # how long to wait while another replica makes the file
RETRY_SECONDS = 0.02


class Database(SqliteFile):
    """An open database. Close it."""

    def __init__(self, path: Path, schema: str, version: int) -> None:
        super().__init__(path, "responses-database")
        self._schema = schema
        self._version = version

    @classmethod
    async def open(cls, path: Path, schema: str, version: int) -> Database:
        """Opens the file, or makes it from `schema`.

        Raises:
            DatabaseUnusable: it is damaged, it is something else, or an allm of another version wrote it.
        """
        database = cls(path, schema, version)
        await database._opened()
        return database

    # --- in the thread, at the start and at the end

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Conversations are private; SQLite gives its other files the same mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            connection = self._connection = sqlite3.connect(self._path, isolation_level=None)
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
            self._recognise(connection)
            self._prepare(connection)
        except sqlite3.Error as error:
            raise DatabaseUnusable(self._advice(f"cannot be read ({error})")) from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """While replicas start together one is told at once that the file is locked, whatever its patience."""
        deadline = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)
        # After a power cut the last responses may be missing; nothing else can happen, and none waits for the disk.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what a caller deletes is overwritten
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in self._schema.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {self._version}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")

    def _recognise(self, connection: sqlite3.Connection) -> None:
        """Refuses what is not ours or of another version, before anything is changed."""
        connection.execute("BEGIN")  # one look: another replica may be making the file
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        connection.execute("COMMIT")
        if owner != APPLICATION_ID and (owner or version or tables):
            raise DatabaseUnusable(self._advice("is not allm's store of responses"))
        if version not in (0, self._version):
            raise DatabaseUnusable(
                self._advice(f"was written by another version of allm (schema {version}, not {self._version})")
            )

    def _advice(self, what: str) -> str:
        return f"{self._path} {what}: move it away, set another ALLM_HOME, or keep no responses (ALLM_STORE=off)"
