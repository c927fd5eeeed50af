"""Pictures of conversations as pixels: read from where they are, and decoded and scaled in a confined process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from services.auth.caller import current_caller
from services.errors import ImageNotFound, InvalidRequest, RequestTooLarge
from services.pictures.fetcher import PictureFetcher
from services.pictures.image_files import ImageFiles
from services.pictures.messages import Decode, Fit
from services.pictures.pictures import Codecs
from services.rpc.shares import Share, Shares
from services.settings.modality_settings import MIB, ImageSettings
from services.telemetry import tracing
from services.text.conversation import Detail, Picture
from services.text.engine.messages import Pixels
from services.text.picture_urls import data_url

# The side of a square with the most pixels that a model gets, however large a picture is.
SIDES: dict[Detail, int] = {"auto": 2048, "high": 2048, "low": 512}
MAX_REQUEST_PIXELS = 64 * MIB  # of all pictures of a request after scaling: a message to a worker has 256 MiB
AT_ONCE = 4  # pictures of a request that are read at the same time


class PictureInputs:
    """Reads the pictures of conversations. Its processes start with the first picture."""

    def __init__(self, settings: ImageSettings) -> None:
        self._codecs = Codecs(
            most=settings.codecs,
            queue=settings.queue_limit,
            max_pixels=settings.max_image_pixels,
            seconds=settings.stall_seconds,
        )
        self._fetcher = PictureFetcher(
            settings.hosts,
            max_bytes=settings.max_image_bytes,
            queue=settings.queue_limit,
            seconds=settings.fetch_seconds,
        )
        self._files = ImageFiles(settings.folder, settings.folder_bytes, settings.public_url)
        self._max_bytes = settings.max_image_bytes
        self._room = Shares(
            settings.upload_bytes, holders="pictures of conversations", variable="ALLM_IMAGE_UPLOAD_BYTES"
        )

    async def close(self) -> None:
        """Ends the idle processes."""
        await self._codecs.pool.close()

    @asynccontextmanager
    async def pixels(self, pictures: Sequence[Picture]) -> AsyncIterator[tuple[Pixels, ...]]:
        """Yields the pictures of a request, decoded, in their order. The block holds their memory for the caller's key.

        Raises:
            InvalidRequest, RequestTooLarge: a picture cannot be had, or is damaged or too large; `param` is its own.
            Overloaded, Timeout: too many pictures are being read or are in memory, or one takes too long.
            Unsupported: the package that reads pictures is not installed.
        """
        if not pictures:
            yield ()
            return
        turns = asyncio.Semaphore(AT_ONCE)
        with self._room.open(current_caller().identity.subject) as share:
            tasks = [asyncio.create_task(self._read(picture, share, turns)) for picture in pictures]
            try:
                with tracing.part("decode pictures"):
                    found = await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            yield tuple(found)

    async def lasting(self, url: str, param: str) -> str:
        """Returns an address that does not expire: an image that this server has drawn becomes a data URL.

        Raises:
            InvalidRequest: it has expired.
        """
        if self._files.name_of(url) is None:
            return url
        with self._room.open(current_caller().identity.subject) as share:
            return data_url(await self._data(Picture(at=0, param=param, url=url), share))

    async def _read(self, picture: Picture, share: Share, turns: asyncio.Semaphore) -> Pixels:
        side = SIDES[picture.detail]
        fit = Fit(width=side, height=side, exact=False, max_pixels=side * side, enlarge=False)
        async with turns:
            with self._room.open(share.key) as file:
                data = picture.data or await self._data(picture, file)
                if len(data) > self._max_bytes:
                    message = f"'{picture.param}' is over the limit of {self._max_bytes} bytes (ALLM_MAX_IMAGE_BYTES)."
                    raise RequestTooLarge(message, param=picture.param)
                decoded = await self._codecs.decode(Decode(image=data, fit=fit, gif=True, param=picture.param))
        share.take(len(decoded.pixels))
        if share.taken > 3 * MAX_REQUEST_PIXELS:
            message = f"The pictures of this request have over {MAX_REQUEST_PIXELS} pixels together, the most allowed."
            raise InvalidRequest(message, param=picture.param)
        return Pixels(
            width=decoded.width,
            height=decoded.height,
            pixels=decoded.pixels,
            detail=picture.detail,
            param=picture.param,
        )

    async def _data(self, picture: Picture, share: Share) -> bytes:
        """Returns the file at a picture's address; `share` holds its memory."""
        name = self._files.name_of(picture.url)
        if name is None:
            return await self._fetcher.fetch(picture.url, picture.param, share.take)
        try:
            data = (await self._files.read(name, current_caller().identity.subject))[1]
        except ImageNotFound as error:
            message = f"'{picture.param}' is no image that this server has drawn for you, or it has expired."
            raise InvalidRequest(message, param=picture.param) from error
        share.take(len(data))
        return data
