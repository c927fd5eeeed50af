"""The typed image API over a scripted core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.image.v1 import image_pb2, image_service_pb2, image_service_pb2_grpc
from google.rpc import error_details_pb2, status_pb2
from images_script import LIMIT_BYTES, MODEL, ScriptedImages, content, served

from services.image.image_request import Output
from services.image.images import Done, Event
from services.rpc.errors import InvalidRequest

PATIENCE_SECONDS = 10
Stub = image_service_pb2_grpc.ImageServiceStub


@pytest.fixture
def core() -> ScriptedImages:
    return ScriptedImages()


@pytest.fixture
async def stub(core: ScriptedImages, tmp_path: Path) -> AsyncIterator[Stub]:
    async with served(core, tmp_path) as channel:
        yield Stub(channel)


def generate(prompt: str = "a red circle", **config: Any) -> image_service_pb2.GenerateImageRequest:
    return image_service_pb2.GenerateImageRequest(
        config=image_pb2.ImageConfig(**{"model": MODEL} | config), prompt=prompt
    )


def detail(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """What the status says beside its message."""
    metadata = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    return info


async def test_pictures_come_in_order_with_all_that_they_were_drawn_with(stub: Stub, core: ScriptedImages) -> None:
    answer = await stub.GenerateImage(generate(count=2, format=image_pb2.IMAGE_FORMAT_WEBP))
    assert answer.model == MODEL
    assert [(each.index, each.data, each.seed) for each in answer.images] == [(0, content(0), 7), (1, content(1), 8)]
    assert {each.format for each in answer.images} == {image_pb2.IMAGE_FORMAT_WEBP}
    drawn = answer.parameters
    assert (drawn.width, drawn.height, drawn.seed, drawn.steps) == (64, 32, 7, 4)
    assert (drawn.guidance, drawn.scheduler, drawn.HasField("strength")) == (5.5, "ddim", False)
    assert (answer.usage.prompt_tokens, answer.usage.steps, answer.usage.seconds) == (9, 8, 0.25)
    (request,) = core.requests
    assert (request.count, request.output, request.progress) == (2, Output("webp", 100), False)


async def test_all_parameters_reach_the_core(stub: Stub, core: ScriptedImages) -> None:
    fields = {"width": 96, "height": 64, "seed": 0, "steps": 12, "guidance": 0.7, "negative_prompt": "blue"}
    await stub.GenerateImage(generate(**fields, scheduler="euler", format="IMAGE_FORMAT_JPEG", compression=0))
    (request,) = core.requests
    assert (request.size, request.seed, request.steps, request.guidance) == ((96, 64), 0, 12, 0.7)
    assert (request.negative_prompt, request.scheduler, request.output) == ("blue", "euler", Output("jpeg", 0))


async def test_a_stream_tells_how_it_goes(stub: Stub, core: ScriptedImages) -> None:
    request = image_service_pb2.StreamGenerateImageRequest(
        config=image_pb2.ImageConfig(model=MODEL), prompt="x", partial_images=1
    )
    events = [event async for event in stub.StreamGenerateImage(request)]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["started", *["progress"] * 4, "partial", "image", "finished"]
    assert [(event.progress.step, event.progress.steps) for event in events[1:5]] == [(step, 4) for step in range(1, 5)]
    assert (events[5].partial.number, events[5].partial.image.data) == (0, content(0, 0))
    assert events[6].image.data == content(0)
    assert core.requests[0].progress


async def test_an_edit_and_a_variation_take_files(stub: Stub, core: ScriptedImages) -> None:
    config = image_pb2.ImageConfig(model=MODEL)
    edit = image_service_pb2.EditImageRequest(config=config, prompt="hat", image=b"image", mask=b"mask", strength=0.7)
    assert len((await stub.EditImage(edit)).images) == 1
    await stub.CreateVariation(image_service_pb2.CreateVariationRequest(config=config, image=b"image"))
    first, second = core.requests
    assert (first.task, first.image, first.mask, first.strength) == ("edit", b"image", b"mask", 0.7)
    assert (second.task, second.image, second.mask, second.strength) == ("vary", b"image", b"", None)


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"model": ""}, "model"),
        ({"count": 0}, "count"),
        ({"count": 100}, "count"),
        ({"width": 64}, "height"),
        ({"seed": -1}, "seed"),
        ({"compression": 50}, "compression"),
        ({"format": 9}, "format"),
        ({"negative_prompt": "x" * 32_001}, "negative_prompt"),
    ],
)
async def test_a_wrong_value_is_refused_by_name(stub: Stub, config: dict[str, Any], param: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GenerateImage(generate(**config))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert detail(caught.value).metadata["param"] == param


async def test_what_the_core_refuses_is_named_as_here(stub: Stub, core: ScriptedImages) -> None:
    async def fail(_: Event) -> None:
        raise InvalidRequest("too large", param="size")

    core.between = fail
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GenerateImage(generate())
    assert detail(caught.value).metadata["param"] == "width"


async def test_a_missing_image_and_one_over_the_limit(stub: Stub) -> None:
    config = image_pb2.ImageConfig(model=MODEL)
    for data, code in ((b"", grpc.StatusCode.INVALID_ARGUMENT), (bytes(LIMIT_BYTES + 1), grpc.StatusCode.OUT_OF_RANGE)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateVariation(image_service_pb2.CreateVariationRequest(config=config, image=data))
        assert caught.value.code() == code
        assert detail(caught.value).metadata["param"] == "image"


async def test_cancelling_the_call_ends_the_request(stub: Stub, core: ScriptedImages) -> None:
    hang = asyncio.Event()

    async def wait(event: Event) -> None:
        if isinstance(event, Done):
            await hang.wait()

    core.between = wait
    request = image_service_pb2.StreamGenerateImageRequest(config=image_pb2.ImageConfig(model=MODEL), prompt="x")
    call = stub.StreamGenerateImage(request)
    assert (await call.read()).WhichOneof("event") == "started"
    call.cancel()
    await asyncio.wait_for(core.left.wait(), PATIENCE_SECONDS)
