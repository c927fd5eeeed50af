"""The shared memory limit for uploads of all requests, over both wire formats and on its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import openai
import pytest
from allm.image.v1 import image_pb2, image_service_pb2, image_service_pb2_grpc

from services.image.images import Event
from tests.image.api.images_script import MODEL, ScriptedImages, served
from tests.image.api.official_images_client import official_client

PATIENCE_SECONDS = 60
ROOM = 1000  # bytes
MOST = b"x" * 600  # two of these exceed the limit


@asynccontextmanager
async def occupied(folder: Path) -> AsyncIterator[tuple[grpc.aio.Channel, asyncio.Event, asyncio.Task[object]]]:
    """Runs the services during an edit with a large image; setting the event lets the edit end."""
    there, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_: Event) -> None:
        there.set()
        await go_on.wait()

    async with (
        served(ScriptedImages(between=wait), folder, room_bytes=ROOM) as channel,
        official_client(channel) as client,
    ):
        first = asyncio.create_task(client.images.edit(image=("a.png", MOST), prompt="x", model=MODEL))
        await asyncio.wait_for(there.wait(), PATIENCE_SECONDS)
        yield channel, go_on, first


async def test_form_without_room_gets_a_retry_time(tmp_path: Path) -> None:
    async with occupied(tmp_path) as (channel, go_on, first), official_client(channel) as client:
        with pytest.raises(openai.RateLimitError, match="ALLM_IMAGE_UPLOAD_BYTES") as caught:
            await client.images.edit(image=("a.png", MOST), prompt="x", model=MODEL)
        assert caught.value.response.headers["retry-after"] == "5"
        go_on.set()
        await first
        assert (await client.images.edit(image=("a.png", MOST), prompt="x", model=MODEL)).data


async def test_typed_calls_share_the_room(tmp_path: Path) -> None:
    """Requests without uploads still succeed."""
    config = image_pb2.ImageConfig(model=MODEL)
    edit = image_service_pb2.StreamEditImageRequest(config=config, prompt="x", image=b"x" * 300, mask=b"x" * 300)
    async with occupied(tmp_path) as (channel, go_on, first):
        stub = image_service_pb2_grpc.ImageServiceStub(channel)
        call = stub.StreamEditImage(edit)
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "ALLM_IMAGE_UPLOAD_BYTES" in (await call.details() or "")
        assert dict(await call.trailing_metadata())["retry-after"] == "5"
        go_on.set()
        await first
        assert [event.WhichOneof("event") async for event in stub.StreamEditImage(edit)][-1] == "finished"
        plain = image_service_pb2.GenerateImageRequest(config=config, prompt="x")
        assert (await stub.GenerateImage(plain)).images
