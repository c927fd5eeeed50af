"""Files on disk: private files and folders, locks on shared volumes, and SQLite files.

Private files of older releases, which others could read, are mended. Only this user's own are changed: a volume that
root owns keeps its mode. Model files are not touched: other users may share them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import sqlite3
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, TypeVar

from services.errors import Internal

OTHERS = 0o077  # permissions of the group and of everybody else


def private_folder(path: Path) -> None:
    """Creates a folder that only its owner may enter, or mends an existing one. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    wider = (Path("/"), Path(os.path.expanduser("~")))  # noqa: PTH111 (Path.home fails for a user without a home)
    # A folder with other purposes keeps its mode: these, and sticky ones such as /tmp.
    if path.resolve() not in wider and not path.stat().st_mode & stat.S_ISVTX:
        make_private(path)


def make_private(path: Path) -> None:
    """Takes the permissions of all others from a file or folder, if it exists and is this user's own."""
    with contextlib.suppress(OSError):  # gone, or on a read-only disk
        found = path.stat()
        if found.st_uid == os.geteuid() and found.st_mode & OTHERS:
            path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)


def sync(path: Path) -> None:
    """Flushes a file's content, or a folder's list of names, to disk, so that it survives a power cut.

    Raises:
        OSError: the disk reports a failure.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Writes a file that appears, with this mode, only when it is complete. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class VolumeLock:
    """A lock between processes that share a volume. The kernel releases it when its holder dies.

    It is an flock on a lock file that is never deleted: otherwise two processes could lock different files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    @property
    def exists(self) -> bool:
        """True if the lock was ever taken."""
        return self._path.is_file()

    def take(self) -> bool:
        """Takes the lock unless another holder excludes this; returns whether it did.

        Raises:
            OSError: the file cannot be created or opened.
        """
        return self._take(fcntl.LOCK_NB | fcntl.LOCK_EX)

    def wait_shared(self) -> None:
        """Takes a shared lock; blocks while another process holds it exclusively.

        Raises:
            OSError: the file cannot be created or opened.
        """
        self._take(fcntl.LOCK_SH)

    def release(self) -> None:
        """Releases the lock, if it is held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, operation: int) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self.release()
        self._descriptor = descriptor
        return True


T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
WAL_PAGES = 1000  # 4 MiB
WAL_BYTES = 8 * 1024 * 1024  # a log that a long reader made larger is cut to this size
CLOSE_MILLISECONDS = 1000  # how long closing waits for other processes' transactions


class DatabaseUnusable(OSError):
    """The file cannot be used as it is; the message names the remedy."""


class SqliteFile(ABC):
    """An open database, whose work runs in its own thread, in whole transactions. The caller closes it.

    Subclasses define tables and how to open the file. A commit waits for the disk, on a slow one for tens of
    milliseconds, during which the event loop must answer other RPCs; one thread also means one writer, in order.
    """

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

    def _use_log(self, connection: sqlite3.Connection, pages: int = WAL_PAGES) -> None:
        """Switches to a write-ahead log of bounded size: readers then block no writer.

        `pages`: after so many, a commit moves the log's content into the file.
        """
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")
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
