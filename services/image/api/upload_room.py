"""Memory for the pictures that callers send: so many bytes of all requests together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.errors import Overloaded

RETRY_SECONDS = 5.0  # a picture is drawn over in some seconds, and then its file goes


class UploadRoom:
    """What both wire formats share."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._taken = 0

    @property
    def taken(self) -> int:
        """Bytes that are here."""
        return self._taken

    @contextmanager
    def share(self) -> Iterator[UploadShare]:
        """What one request takes of it; leaving the block gives all of that back."""
        share = UploadShare(self)
        try:
            yield share
        finally:
            self._taken -= share.taken

    def take(self, count: int) -> None:
        """Takes bytes of a share. Raises Overloaded where there is no room for them."""
        if self._taken + count > self._most_bytes:
            raise Overloaded(
                f"pictures of {self._taken} bytes are here already, and there is room for {self._most_bytes} "
                "(ALLM_IMAGE_UPLOAD_BYTES)",
                retry_after=RETRY_SECONDS,
            )
        self._taken += count


class UploadShare:
    """The bytes of one request."""

    def __init__(self, room: UploadRoom) -> None:
        self._room = room
        self.taken = 0

    def take(self, count: int) -> None:
        """Takes so many more. Raises Overloaded, and has as many as before."""
        self._room.take(count)
        self.taken += count
