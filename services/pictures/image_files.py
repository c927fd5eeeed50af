"""Storage for pictures that answers link by `url`: unguessable names, kept for an hour, in a folder replicas share.

The image service writes them. The text service reads those that its callers have drawn, without a network.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from services.errors import ImageNotFound, Internal, Overloaded
from services.pictures.messages import FileKind

log = logging.getLogger(__name__)

KEPT_SECONDS = 3600.0
SWEEP_SECONDS = 60.0
RANDOM_BYTES, OWNER_BYTES = 16, 8  # of a name
_NAME = re.compile(r"[A-Za-z0-9_-]{32}\.(png|jpeg|webp)")
_PARTIAL = ".part"  # of a file that is being written
PATH = "/v1/images/files/"  # the gateway serves them under this path


class ImageFiles:
    """The shared folder. Every replica removes expired pictures, including those of replicas that are gone."""

    def __init__(self, folder: Path, limit_bytes: int, public_url: str, kept_seconds: float = KEPT_SECONDS) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._address = public_url + PATH
        self._kept_seconds = kept_seconds
        self._size = 0  # bytes in the folder at the last sweep, plus what was added here since
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Creates the folder and starts sweeping it. Raises Internal if the folder cannot be used."""
        try:
            await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            await asyncio.to_thread(self._sweep)
        except OSError as error:
            raise Internal(f"the image folder (ALLM_IMAGE_FOLDER) cannot be used: {error.strerror}") from error
        self._sweeping = asyncio.create_task(self._sweep_on())

    async def close(self) -> None:
        """Stops sweeping. The pictures stay for the other replicas."""
        if self._sweeping:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    async def keep(self, data: bytes, kind: FileKind, owner: str) -> str:
        """Writes a picture and returns its URL. `owner`: the subject of the caller's key.

        Raises:
            Overloaded: the folder is full.
            Internal: the picture cannot be written.
        """
        if self._size + len(data) > self._limit:
            raise Overloaded(
                f"the stored images have {self._limit} bytes already (ALLM_IMAGE_FOLDER_BYTES): "
                "request b64_json, or try again later",
                retry_after=SWEEP_SECONDS,
            )
        name = f"{_stem(owner, secrets.token_bytes(RANDOM_BYTES))}.{kind}"
        self._size += len(data)
        try:
            await asyncio.to_thread(self._write, name, data)
        except OSError as error:
            raise Internal(f"an image cannot be stored: {error.strerror}") from error
        return self._address + name

    async def read(self, name: str, owner: str | None = None) -> tuple[str, bytes]:
        """Returns a picture's content type and bytes. `owner`: only if it was drawn for this owner; None: for anyone.

        Raises ImageNotFound if it does not exist, has expired, or was drawn for another owner.
        """
        found = _NAME.fullmatch(name)
        if not found or (owner is not None and not _is_of(name, owner)):
            raise ImageNotFound("There is no such image.", param="name")
        try:
            return f"image/{found[1]}", await asyncio.to_thread(self._read, name)
        except FileNotFoundError:
            what = f"There is no such image: images are kept for {self._kept_seconds / 60:g} minutes."
            raise ImageNotFound(what, param="name") from None
        except OSError as error:
            raise Internal(f"an image cannot be read: {error.strerror}") from error

    def name_of(self, url: str) -> str | None:
        """Returns the name in a picture's URL, or in its path alone; None for any other URL."""
        for start in (self._address, PATH):
            if url.startswith(start):
                return url.removeprefix(start)
        return None

    def _write(self, name: str, data: bytes) -> None:
        """Renames the file only when it is complete, because other replicas read it as soon as it exists."""
        path = self._folder / f"{name}{_PARTIAL}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            path.rename(self._folder / name)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def _read(self, name: str) -> bytes:
        with (self._folder / name).open("rb") as file:
            if self._is_expired(os.fstat(file.fileno())):
                raise FileNotFoundError(name)
            return file.read()

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await asyncio.to_thread(self._sweep)
            except OSError:
                log.exception("the image folder cannot be cleaned up")

    def _sweep(self) -> None:
        """Removes expired pictures. Files that are not ours stay untouched."""
        size = 0
        for path in self._ours():
            with contextlib.suppress(FileNotFoundError):  # another replica was faster
                status = path.lstat()
                if self._is_expired(status):
                    path.unlink()
                else:
                    size += status.st_size
        self._size = size

    def _is_expired(self, status: os.stat_result) -> bool:
        """Returns True also for a picture of a clock that was ahead: it would keep its place until then."""
        return abs(time.time() - status.st_mtime) > self._kept_seconds

    def _ours(self) -> Iterator[Path]:
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name.removesuffix(_PARTIAL)):
                yield path


def _stem(owner: str, random: bytes) -> str:
    """Returns a name for an owner's picture, without the extension: random bytes, and a hash of them and the owner.

    So the folder needs no list of owners: a picture of another owner has a name with another hash.
    """
    digest = hashlib.blake2b(owner.encode(), key=random, digest_size=OWNER_BYTES).digest()
    return base64.urlsafe_b64encode(random + digest).decode()


def _is_of(name: str, owner: str) -> bool:
    stem = name.partition(".")[0]
    return stem == _stem(owner, base64.urlsafe_b64decode(stem)[:RANDOM_BYTES])
