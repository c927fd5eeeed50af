"""A SQLite file that several processes of one host share; any of them may create it.

This class knows no tables. SQLite itself serialises the processes.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from services.storage.sqlite_file import DatabaseUnusable, SqliteFile

OPEN_SECONDS = 10.0  # how long to wait while another process creates the file
RETRY_SECONDS = 0.02


class SharedSqliteFile(SqliteFile):
    """An open database. The caller closes it.

    A subclass defines the number in the file's header, the file's name in messages, and the remedy for an unusable one.
    """

    application_id: int
    noun: str  # as in `is not allm's store of responses`
    remedy: str  # what an operator does about an unusable file
    busy_milliseconds = 10_000  # how long one process waits for another's transaction
    pragmas: tuple[str, ...] = ()  # set on every connection

    def __init__(self, path: Path, thread_name: str, schema: str, version: int) -> None:
        super().__init__(path, thread_name)
        self._schema = schema
        self._version = version

    # --- in the thread, at the start and at the end

    def _open(self) -> None:
        try:
            connection = self._connect()
            connection.execute(f"PRAGMA busy_timeout = {self.busy_milliseconds}")
            self._recognise(connection)
            self._prepare(connection)
        except sqlite3.Error as error:
            raise DatabaseUnusable(self._advice(f"cannot be read ({error})")) from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Sets up the connection. Retries, because SQLite ignores the busy timeout while processes start together."""
        deadline = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                self._use_log(connection)
                break
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)
        # After a power cut the last writes may be missing; the file stays intact, and no write waits for the disk.
        connection.execute("PRAGMA synchronous = NORMAL")
        for pragma in self.pragmas:
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in self._schema.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {self._version}")
            connection.execute(f"PRAGMA application_id = {self.application_id}")
        connection.execute("COMMIT")

    def _recognise(self, connection: sqlite3.Connection) -> None:
        """Refuses foreign files and other versions, before anything is changed."""
        connection.execute("BEGIN")  # one transaction: another process may be creating the file
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        connection.execute("COMMIT")
        if owner != self.application_id and (owner or version or tables):
            raise DatabaseUnusable(self._advice(f"is not allm's {self.noun}"))
        if version not in (0, self._version):
            raise DatabaseUnusable(
                self._advice(f"was written by another version of allm (schema {version}, not {self._version})")
            )

    def _advice(self, what: str) -> str:
        return f"{self._path} {what}: {self.remedy}"
