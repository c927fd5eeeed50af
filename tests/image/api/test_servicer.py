"""The typed image API over a scripted core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.image.v1 import image_pb2, image_service_pb2, image_service_pb2_grpc
from google.rpc import error_details_pb2, status_pb2

from services.errors import InvalidRequest, Overloaded
from services.image.images import Event, PictureFile
from services.image.parameters import OutputFormat
from tests.case import case
from tests.image.api.images_script import LIMIT_BYTES, MODEL, ScriptedImages, content, served

PATIENCE_SECONDS = 60
Stub = image_service_pb2_grpc.ImageServiceStub
CONFIG = image_pb2.ImageConfig(model=MODEL)
# The smallest valid request of each stream.
STREAMED: dict[str, Any] = {
    "StreamGenerateImage": image_service_pb2.StreamGenerateImageRequest(config=CONFIG, prompt="x"),
    "StreamEditImage": image_service_pb2.StreamEditImageRequest(config=CONFIG, prompt="x", image=b"image"),
    "StreamCreateVariation": image_service_pb2.StreamCreateVariationRequest(config=CONFIG, image=b"image"),
}
streams = pytest.mark.parametrize("rpc", STREAMED)


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


def streamed(rpc: str, **changes: Any) -> Any:
    """Returns the smallest request of a stream, with changes."""
    request = type(STREAMED[rpc])()
    request.CopyFrom(STREAMED[rpc])
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def detail(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """Returns the error details of the status."""
    metadata = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    return info


async def test_pictures_arrive_in_order_with_their_parameters(stub: Stub, core: ScriptedImages) -> None:
    answer = await stub.GenerateImage(generate(count=2, format=image_pb2.IMAGE_FORMAT_WEBP))
    assert answer.model == MODEL
    assert [(each.index, each.data, each.seed) for each in answer.images] == [(0, content(0), 7), (1, content(1), 8)]
    assert {each.format for each in answer.images} == {image_pb2.IMAGE_FORMAT_WEBP}
    drawn = answer.parameters
    assert (drawn.width, drawn.height, drawn.seed, drawn.steps) == (64, 32, 7, 4)
    assert (drawn.guidance, drawn.scheduler, drawn.HasField("strength")) == (5.5, "ddim", False)
    assert (answer.usage.prompt_tokens, answer.usage.steps, answer.usage.seconds) == (9, 8, 0.25)
    (request,) = core.requests
    assert (request.count, request.output, request.progress) == (2, OutputFormat("webp", 100), False)


async def test_all_parameters_reach_the_core(stub: Stub, core: ScriptedImages) -> None:
    fields = {"width": 96, "height": 64, "seed": 0, "steps": 12, "guidance": 0.7, "negative_prompt": "blue"}
    await stub.GenerateImage(generate(**fields, scheduler="euler", format="IMAGE_FORMAT_JPEG", compression=0))
    (request,) = core.requests
    assert (request.size, request.seed, request.steps, request.guidance) == ((96, 64), 0, 12, 0.7)
    assert (request.negative_prompt, request.scheduler, request.output) == ("blue", "euler", OutputFormat("jpeg", 0))


@streams
async def test_a_stream_reports_progress(stub: Stub, core: ScriptedImages, rpc: str) -> None:
    events = [event async for event in getattr(stub, rpc)(streamed(rpc, partial_images=1))]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["started", *["progress"] * 4, "partial", "image", "finished"]
    assert [(event.progress.step, event.progress.steps) for event in events[1:5]] == [(step, 4) for step in range(1, 5)]
    assert (events[5].partial.number, events[5].partial.image.data) == (0, content(0, 0))
    assert events[6].image.data == content(0)
    assert core.requests[0].progress


@pytest.mark.parametrize("whole", ["EditImage", "CreateVariation"])
async def test_a_stream_asks_for_what_the_whole_answer_does(stub: Stub, core: ScriptedImages, whole: str) -> None:
    """Each picture is also the same message: only the time of delivery differs."""
    fields = {"prompt": "hat", "mask": b"mask"} if whole == "EditImage" else {}
    config = image_pb2.ImageConfig(model=MODEL, width=96, height=64, count=2, seed=3, steps=12, guidance=0.7)
    one: Any = getattr(image_service_pb2, f"{whole}Request")(config=config, image=b"image", strength=0.7, **fields)
    other = getattr(image_service_pb2, f"Stream{whole}Request").FromString(one.SerializeToString())
    other.partial_images = 2
    answer = await getattr(stub, whole)(one)
    events = [event async for event in getattr(stub, f"Stream{whole}")(other)]
    first, second = core.requests
    assert (second.partials, second.progress) == (2, True)
    assert replace(second, partials=0, progress=False) == first
    done = sorted((event.image for event in events if event.HasField("image")), key=lambda image: image.index)
    assert done == list(answer.images)
    assert (events[0].started.model, events[0].started.parameters) == (answer.model, answer.parameters)
    assert events[-1].finished.usage == answer.usage


async def test_an_edit_and_a_variation_take_files(stub: Stub, core: ScriptedImages) -> None:
    edit = image_service_pb2.EditImageRequest(config=CONFIG, prompt="hat", image=b"image", mask=b"mask", strength=0.7)
    assert len((await stub.EditImage(edit)).images) == 1
    await stub.CreateVariation(image_service_pb2.CreateVariationRequest(config=CONFIG, image=b"image"))
    first, second = core.requests
    assert (first.task, first.image, first.mask, first.strength) == ("edit", b"image", b"mask", 0.7)
    assert (second.task, second.image, second.mask, second.strength) == ("vary", b"image", b"", None)


async def test_a_wrong_value_is_refused_by_name(stub: Stub) -> None:
    for config, param in [
        ({"model": ""}, "model"),
        ({"count": 0}, "count"),
        ({"count": 100}, "count"),
        ({"width": 64}, "height"),
        ({"seed": -1}, "seed"),
        ({"compression": 50}, "compression"),
        ({"format": 9}, "format"),
        ({"negative_prompt": "x" * 32_001}, "negative_prompt"),
    ]:
        with case(config=config, param=param):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GenerateImage(generate(**config))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert detail(caught.value).metadata["param"] == param


async def test_refusals_of_the_core_use_the_typed_field_names(stub: Stub, core: ScriptedImages) -> None:
    async def fail(_: Event) -> None:
        raise InvalidRequest("too large", param="size")

    core.between = fail
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GenerateImage(generate())
    assert detail(caught.value).metadata["param"] == "width"


async def test_a_missing_image_and_one_over_the_limit(stub: Stub) -> None:
    for data, code in ((b"", grpc.StatusCode.INVALID_ARGUMENT), (bytes(LIMIT_BYTES + 1), grpc.StatusCode.OUT_OF_RANGE)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateVariation(image_service_pb2.CreateVariationRequest(config=CONFIG, image=data))
        assert caught.value.code() == code
        assert detail(caught.value).metadata["param"] == "image"


@pytest.mark.parametrize(
    ("rpc", "changes", "param", "code"),
    [
        ("StreamEditImage", {"image": b""}, "image", grpc.StatusCode.INVALID_ARGUMENT),
        ("StreamEditImage", {"prompt": " "}, "prompt", grpc.StatusCode.INVALID_ARGUMENT),
        ("StreamEditImage", {"mask": bytes(LIMIT_BYTES + 1)}, "mask", grpc.StatusCode.OUT_OF_RANGE),
        ("StreamEditImage", {"partial_images": 4}, "partial_images", grpc.StatusCode.INVALID_ARGUMENT),
        ("StreamCreateVariation", {"image": bytes(LIMIT_BYTES + 1)}, "image", grpc.StatusCode.OUT_OF_RANGE),
        ("StreamCreateVariation", {"partial_images": -1}, "partial_images", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_stream_over_an_image_is_refused_by_name(
    stub: Stub, core: ScriptedImages, rpc: str, changes: dict[str, Any], param: str, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [event async for event in getattr(stub, rpc)(streamed(rpc, **changes))]
    assert (caught.value.code(), detail(caught.value).metadata["param"]) == (code, param)
    assert core.requests == []


@streams
async def test_an_error_ends_a_stream_with_its_status(stub: Stub, core: ScriptedImages, rpc: str) -> None:
    async def fail(event: Event) -> None:
        if isinstance(event, PictureFile) and event.partial is None:
            raise Overloaded("no more room")

    core.between = fail
    kinds = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for event in getattr(stub, rpc)(STREAMED[rpc]):
            kinds.append(event.WhichOneof("event"))
    assert kinds == ["started", *["progress"] * 4]
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert detail(caught.value).reason == "OVERLOADED"


@streams
async def test_cancelling_the_call_ends_the_request(stub: Stub, core: ScriptedImages, rpc: str) -> None:
    hang = asyncio.Event()

    async def wait(event: Event) -> None:
        if isinstance(event, PictureFile) and event.partial is None:
            await hang.wait()

    core.between = wait
    call = getattr(stub, rpc)(STREAMED[rpc])
    assert (await call.read()).WhichOneof("event") == "started"
    call.cancel()
    await asyncio.wait_for(core.left.wait(), PATIENCE_SECONDS)
