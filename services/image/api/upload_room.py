"""The memory limit for uploaded pictures, over all requests together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.errors import Overloaded

RETRY_SECONDS = 5.0  # an edit takes some seconds, then its file is freed


class UploadRoom:
    """The memory budget that both wire formats share."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._taken = 0

    @property
    def taken(self) -> int:
        """Bytes in use."""
        return self._taken

    @contextmanager
    def share(self) -> Iterator[UploadShare]:
        """Opens the share of one request; leaving the block frees all of it."""
        share = UploadShare(self)
        try:
            yield share
        finally:
            self._taken -= share.taken

    def take(self, count: int) -> None:
        """Reserves bytes for a share. Raises Overloaded if they do not fit."""
        if self._taken + count > self._most_bytes:
            raise Overloaded(
                f"uploads in progress use {self._taken} of {self._most_bytes} bytes (ALLM_IMAGE_UPLOAD_BYTES)",
                retry_after=RETRY_SECONDS,
            )
        self._taken += count


class UploadShare:
    """The bytes of one request."""

    def __init__(self, room: UploadRoom) -> None:
        self._room = room
        self.taken = 0

    def take(self, count: int) -> None:
        """Reserves more bytes. Raises Overloaded, and then keeps the share unchanged."""
        self._room.take(count)
        self.taken += count
