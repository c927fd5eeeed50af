"""A SQLite file whose work runs in its own thread, in whole transactions.

Subclasses define tables and how to open the file. A commit waits for the disk, on a slow one for tens of milliseconds,
during which the event loop must answer other RPCs; one thread also means one writer, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, TypeVar

from services.errors import Internal
from services.storage.private_files import make_private, private_folder

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
WAL_PAGES = 1000  # after so many, 4 MiB, a commit moves the log's content into the file
WAL_BYTES = 8 * 1024 * 1024  # a log that a long reader made larger is cut to this size
CLOSE_MILLISECONDS = 1000  # how long closing waits for other processes' transactions


class DatabaseUnusable(OSError):
    """The file cannot be used as it is; the message names the remedy."""


class SqliteFile(ABC):
    """An open database. The caller closes it."""

    work_errors: ClassVar[
        tuple[type[sqlite3.Error], ...]
    ] = ()  # errors that `work` may raise on purpose: they pass unchanged

    def __init__(self, path: Path, thread_name: str) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=thread_name)
        self._connection: sqlite3.Connection | None = None

    async def read(self, work: Work[T]) -> T:
        """Runs queries. Raises what `work` raises, and Internal when the file cannot be read."""
        return await self._run(work, "DEFERRED")

    async def write(self, work: Work[T]) -> T:
        """Runs changes as one transaction. If `work` raises, nothing changes.

        Raises what `work` raises, and Internal when the file cannot be written.
        """
        return await self._run(work, "IMMEDIATE")

    async def close(self) -> None:
        """Finishes all queued work and closes the file."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _opened(self) -> None:
        """Opens the file in its thread; closes everything if that fails."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        except BaseException:
            await self.close()
            raise

    async def _run(self, work: Work[T], kind: str) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transaction, work, kind)

    def _transaction(self, work: Work[T], kind: str) -> T:
        connection = self._connection
        if connection is None:
            raise Internal(f"{self._path} is closed")
        try:
            connection.execute(f"BEGIN {kind}")
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk rolls it back by itself
                    connection.execute("ROLLBACK")
                raise
        except self.work_errors:
            raise
        except sqlite3.Error as error:
            raise Internal(f"{self._path} cannot be used: {error}") from error
        return result

    # --- in the thread, at the start and at the end

    @abstractmethod
    def _open(self) -> None:
        """Sets `_connection`. Raises DatabaseUnusable."""

    def _connect(self) -> sqlite3.Connection:
        """Opens the file, creating it if necessary. Only its owner may read it, its write-ahead log and its index."""
        private_folder(self._path.parent)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for suffix in ("", "-wal", "-shm"):  # SQLite gives new ones the mode of the file
            make_private(self._path.with_name(self._path.name + suffix))
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        return self._connection

    def _use_log(self, connection: sqlite3.Connection) -> None:
        """Switches to a write-ahead log of bounded size: readers then block no writer."""
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")

    def _close(self) -> None:
        """Moves the log's content into the file, so that a copy of the file is whole, even if others keep it open."""
        connection, self._connection = self._connection, None
        if connection:
            with contextlib.suppress(sqlite3.Error):
                connection.execute(f"PRAGMA busy_timeout = {CLOSE_MILLISECONDS}")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            with contextlib.suppress(sqlite3.Error):
                connection.close()


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
