"""The image REST facade through the official SDK, over a core with scripted pictures."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from allm.image.v1 import image_pb2, image_service_pb2
from allm.image.v1 import image_service_pb2_grpc as typed_pb2_grpc
from allm.openai.v1 import image_service_pb2_grpc
from openai import AsyncOpenAI

from services.auth.identity import ANONYMOUS
from services.errors import ImageNotFound, InvalidRequest, Overloaded
from services.image.images import Event, PictureFile
from services.image.parameters import OutputFormat
from services.pictures.image_files import ImageFiles
from services.rest.openai.body import json_body
from services.rpc.call import IGNORED_HEADER, Call
from tests.case import case
from tests.image.api.images_script import LIMIT_BYTES, MODEL, PUBLIC_URL, ScriptedImages, content, served
from tests.image.api.official_images_client import http_client, official_client

IMAGE = ("image.png", b"\x89PNG what the image is made of", "image/png")
MASK = ("mask.png", b"\x89PNG what the mask is made of", "image/png")
PATIENCE_SECONDS = 60

# OpenAI retired variations in its own API: the SDK warns about them.
variations = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")


@pytest.fixture
def core() -> ScriptedImages:
    return ScriptedImages()


@pytest.fixture
async def channel(core: ScriptedImages, tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with served(core, tmp_path) as channel:
        yield channel


@pytest.fixture
async def client(channel: grpc.aio.Channel) -> AsyncIterator[AsyncOpenAI]:
    async with official_client(channel) as client:
        yield client


# --- Whole answers


async def test_base64_is_the_default(client: AsyncOpenAI, core: ScriptedImages) -> None:
    answer = await client.images.generate(prompt="a red circle", model=MODEL, n=2)
    assert answer.data is not None
    assert [base64.b64decode(each.b64_json or "") for each in answer.data] == [content(0), content(1)]
    assert [each.to_dict()["seed"] for each in answer.data] == [7, 8]
    found = answer.to_dict(exclude_unset=True)
    assert found["created"] > 1_700_000_000
    assert {name: found[name] for name in ("background", "output_format", "quality", "size", "usage")} == {
        "background": "opaque",
        "output_format": "png",
        "quality": "medium",
        "size": "64x32",
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"image_tokens": 0, "text_tokens": 9},
            "output_tokens": 16,
            "output_tokens_details": {"image_tokens": 16, "text_tokens": 0},
            "total_tokens": 25,
        },
    }
    assert type(answer).model_validate(found, strict=False) == answer
    (request,) = core.requests
    assert (request.task, request.prompt, request.count, request.size) == ("generate", "a red circle", 2, None)
    assert (request.seed, request.steps, request.guidance, request.strength) == (None, None, None, None)
    assert (request.quality, request.output, request.partials) == ("auto", OutputFormat("png", 100), 0)


async def test_all_parameters_reach_the_core(client: AsyncOpenAI, core: ScriptedImages) -> None:
    answer = await client.images.generate(
        prompt="a red circle",
        model=MODEL,
        size="96x64",
        output_format="webp",
        output_compression=80,
        background="opaque",
        moderation="low",
        user="somebody",
        extra_body={
            "seed": 2**53 - 1,
            "steps": 12,
            "guidance": 3,
            "negative_prompt": "blue",
            "scheduler": "euler",
            "nobody_knows": True,
        },
    )
    assert answer.safety_identifier == "somebody"
    assert "quality" not in answer.to_dict(exclude_unset=True)
    (request,) = core.requests
    assert (request.size, request.output) == ((96, 64), OutputFormat("webp", 80))
    assert (request.seed, request.steps, request.guidance) == (2**53 - 1, 12, 3.0)
    assert (request.negative_prompt, request.scheduler) == ("blue", "euler")


@pytest.mark.parametrize(
    ("given", "meant"), [("standard", "medium"), ("hd", "high"), ("low", "low"), ("max", "max"), ("auto", "auto")]
)
async def test_qualities_old_and_new(client: AsyncOpenAI, core: ScriptedImages, given: Any, meant: str) -> None:
    answer = await client.images.generate(prompt="x", model=MODEL, quality=given)
    assert core.requests[0].quality == meant
    assert answer.quality == ("medium" if meant == "auto" else meant)


async def test_a_url_is_served_for_an_hour(client: AsyncOpenAI, channel: grpc.aio.Channel) -> None:
    answer = await client.images.generate(prompt="x", model=MODEL, response_format="url", output_format="jpeg", n=2)
    assert answer.data is not None
    urls = [each.url or "" for each in answer.data]
    assert all(url.startswith(f"{PUBLIC_URL}/v1/images/files/") and url.endswith(".jpeg") for url in urls)
    async with http_client(channel) as http:
        got = await http.get(urls[1])
        assert (got.status_code, got.headers["content-type"], got.content) == (200, "image/jpeg", content(1))
        for name in ("nothing", "..%2F..%2Fetc%2Fpasswd", "a" * 32 + ".png"):
            missing = await http.get(f"{PUBLIC_URL}/v1/images/files/{name}")
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "image_not_found")


async def test_a_url_is_the_callers_own(client: AsyncOpenAI, tmp_path: Path) -> None:
    answer = await client.images.generate(prompt="x", model=MODEL, response_format="url")
    assert answer.data is not None
    files = ImageFiles(tmp_path, LIMIT_BYTES, PUBLIC_URL)
    name = files.name_of(answer.data[0].url or "") or ""
    assert await files.read(name, ANONYMOUS.subject) == ("image/png", content(0))
    with pytest.raises(ImageNotFound):
        await files.read(name, "key-of-another")


async def test_edits_take_files_and_extensions(client: AsyncOpenAI, core: ScriptedImages) -> None:
    answer = await client.images.edit(
        image=IMAGE, mask=MASK, prompt="a blue hat", model=MODEL, n=2, extra_body={"strength": 0.7, "seed": 3}
    )
    assert answer.usage is not None
    assert (answer.usage.input_tokens_details.image_tokens, answer.usage.output_tokens) == (8, 16)
    (request,) = core.requests
    assert (request.task, request.prompt, request.count) == ("edit", "a blue hat", 2)
    assert (request.image, request.mask) == (IMAGE[1], MASK[1])
    assert (request.strength, request.seed) == (0.7, 3)


async def test_an_array_of_one_image_is_that_image(client: AsyncOpenAI, core: ScriptedImages) -> None:
    await client.images.edit(image=[IMAGE], prompt="x", model=MODEL)
    assert (core.requests[0].image, core.requests[0].mask) == (IMAGE[1], b"")


@variations
async def test_variations_need_no_prompt(client: AsyncOpenAI, core: ScriptedImages) -> None:
    answer = await client.images.create_variation(image=IMAGE, model=MODEL, n=3, size="256x256")
    assert answer.data is not None
    assert len(answer.data) == 3
    (request,) = core.requests
    assert (request.task, request.prompt, request.image, request.size) == ("vary", "", IMAGE[1], (256, 256))


# --- Streams


async def test_a_stream_has_previews_and_the_picture_with_its_usage(client: AsyncOpenAI) -> None:
    events = [
        event async for event in await client.images.generate(prompt="x", model=MODEL, stream=True, partial_images=2)
    ]
    assert [event.type for event in events] == [
        "image_generation.partial_image",
        "image_generation.partial_image",
        "image_generation.completed",
    ]
    assert [base64.b64decode(event.b64_json) for event in events] == [content(0, 0), content(0, 1), content(0)]
    assert [getattr(event, "partial_image_index", None) for event in events] == [0, 1, None]
    for event in events:
        assert type(event).model_validate(event.to_dict(), strict=True)
        assert (event.size, event.quality, event.output_format, event.background) == ("64x32", "auto", "png", "opaque")
    last = events[-1]
    assert last.type == "image_generation.completed"
    assert (last.usage.input_tokens, last.usage.output_tokens, last.usage.total_tokens) == (9, 8, 17)


async def test_an_edit_streams_events_of_its_own(client: AsyncOpenAI) -> None:
    stream = await client.images.edit(image=IMAGE, prompt="x", model=MODEL, stream=True, partial_images=1)
    events = [event async for event in stream]
    assert [event.type for event in events] == ["image_edit.partial_image", "image_edit.completed"]
    assert all(type(event).model_validate(event.to_dict(), strict=True) for event in events)


async def test_error_after_the_first_preview_is_an_event(client: AsyncOpenAI, core: ScriptedImages) -> None:
    async def fail(event: Event) -> None:
        if isinstance(event, PictureFile) and event.partial is None:
            raise Overloaded("no more room")

    core.between = fail
    stream = await client.images.generate(prompt="x", model=MODEL, stream=True, partial_images=1)
    with pytest.raises(openai.APIError, match="no more room"):
        _ = [event async for event in stream]


async def test_error_before_the_first_preview_is_a_status(client: AsyncOpenAI, core: ScriptedImages) -> None:
    async def fail(_: Event) -> None:
        raise InvalidRequest("'width' does not fit", param="width")

    core.between = fail
    with pytest.raises(openai.BadRequestError, match="'size' does not fit") as caught:
        await client.images.generate(prompt="x", model=MODEL, stream=True)
    assert caught.value.param == "size"


async def test_a_caller_that_leaves_ends_the_request(channel: grpc.aio.Channel, core: ScriptedImages) -> None:
    hang = asyncio.Event()

    async def wait(event: Event) -> None:
        if isinstance(event, PictureFile) and event.partial is None:
            await hang.wait()

    core.between = wait
    body = json_body({"prompt": "x", "model": MODEL, "stream": True, "partial_images": 1})
    call = image_service_pb2_grpc.ImagesServiceStub(channel).CreateImage(body)
    assert (await call.read()).data.startswith(b"event: image_generation.partial_image\n")
    call.cancel()
    await asyncio.wait_for(core.left.wait(), PATIENCE_SECONDS)


# --- Errors


async def test_a_wrong_parameter_is_refused_by_name(client: AsyncOpenAI, core: ScriptedImages) -> None:
    for changes, param, says in [
        ({"n": 0}, "n", "from 1 to 10, not 0"),
        ({"n": 100}, "n", "from 1 to 10, not 100"),
        ({"size": "big"}, "size", "'512x512', not 'big'"),
        ({"size": "512"}, "size", "512x512"),
        ({"prompt": "word " * 10_000}, "prompt", "50000 characters; at most 32000"),
        ({"prompt": " "}, "prompt", "Missing"),
        ({"quality": "superb"}, "quality", "one of auto, low"),
        ({"quality": "high", "extra_body": {"steps": 5}}, "quality", "mutually exclusive"),
        ({"background": "transparent"}, "background", "no alpha"),
        ({"background": "blue"}, "background", "one of auto, opaque"),
        ({"style": "vivid"}, "style", "not supported"),
        ({"complexity": "low"}, "complexity", "not supported"),
        ({"output_format": "gif"}, "output_format", "gif is not supported"),
        ({"output_format": "bmp"}, "output_format", "one of png, jpeg, webp"),
        ({"output_compression": 50}, "output_compression", "needs the format jpeg or webp"),
        ({"output_compression": 101, "output_format": "jpeg"}, "output_compression", "from 0 to 100"),
        ({"response_format": "file"}, "response_format", "b64_json, url"),
        ({"stream": True, "response_format": "url"}, "stream", "b64_json"),
        ({"stream": True, "n": 2}, "n", "'n' 1"),
        ({"partial_images": 1}, "partial_images", "'stream' true"),
        ({"stream": True, "partial_images": 4}, "partial_images", "from 0 to 3"),
        ({"extra_body": {"seed": -1}}, "seed", "from 0 to 9007199254740991"),
        ({"extra_body": {"seed": 1.5}}, "seed", "Invalid type"),
        ({"extra_body": {"strength": 0.5}}, "strength", "needs an image"),
        ({"extra_body": {"model": None}}, "model", "Missing"),
    ]:
        with case(changes=changes, param=param, says=says):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.images.generate(**{"prompt": "x", "model": MODEL} | changes)
            assert caught.value.param == param
            assert says in caught.value.message
            assert core.requests == []


@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        ({"image": ("image.png", b"")}, "image", "is empty"),
        ({"image": [IMAGE, IMAGE]}, "image", "Several images"),
        ({"input_fidelity": "high"}, "input_fidelity", "not supported"),
        ({"n": "many"}, "n", "a number, not 'many'"),
        ({"extra_body": {"strength": "much"}}, "strength", "a number"),
        ({"prompt": ""}, "prompt", "Missing"),
    ],
)
async def test_a_wrong_form_is_refused_by_name(
    client: AsyncOpenAI, core: ScriptedImages, changes: dict[str, Any], param: str, says: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.images.edit(**{"image": IMAGE, "prompt": "x", "model": MODEL} | changes)
    assert caught.value.param == param
    assert says in caught.value.message
    assert core.requests == []


@variations
async def test_unknown_parts_of_a_form_are_named_or_refused(
    client: AsyncOpenAI, core: ScriptedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fields, also of an array, and files; empty ones are accepted."""
    images, unknown = client.images.with_raw_response, {"hotwords": "allm", "x": ["y", "z"], "empty": ""}
    for create, known in ((images.edit, {"prompt": "x"}), (images.create_variation, {})):
        given: dict[str, Any] = {"image": IMAGE, "model": MODEL, **known}
        with case(create=create.__name__):
            assert (await create(**given, extra_body=unknown)).headers[IGNORED_HEADER] == "hotwords, x[]"
            assert IGNORED_HEADER not in (await create(**given, extra_body={"empty": ""})).headers
            answered = len(core.requests)
            with monkeypatch.context() as patch:
                patch.setattr(Call, "unknown_refused", True)
                with pytest.raises(openai.BadRequestError, match="Unknown parameter: 'hotwords'") as caught:
                    await create(**given, extra_body=unknown)
                assert caught.value.param == "hotwords"
                assert len(core.requests) == answered
                await create(**given, extra_body={"empty": ""})
                assert len(core.requests) == answered + 1


async def test_every_part_of_a_form_may_have_a_content_type(client: AsyncOpenAI, core: ScriptedImages) -> None:
    """HttpClient of .NET sends one with each field."""
    files = [("image", IMAGE), ("hint", ("hint.bin", b"\xff")), ("mask", (None, MASK[1], MASK[2]))]
    files += [("prompt", (None, "a hat", "text/plain")), ("model", (None, MODEL, "text/plain"))]
    form = {"headers": {"Content-Type": "multipart/form-data"}}
    await client.post("/images/edits", cast_to=dict[str, Any], files=files, options=form)
    (request,) = core.requests
    assert (request.prompt, request.image, request.mask) == ("a hat", IMAGE[1], MASK[1])


@variations
async def test_a_file_over_the_limit_is_refused_with_it(client: AsyncOpenAI) -> None:
    large = ("image.png", bytes(LIMIT_BYTES + 1), "image/png")
    with pytest.raises(openai.APIStatusError, match=str(LIMIT_BYTES)) as caught:
        await client.images.create_variation(image=large, model=MODEL)
    assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")


@variations
async def test_a_variation_has_no_mask_and_no_prompt(client: AsyncOpenAI) -> None:
    for extra in ({"prompt": "x"}, {"stream": "true"}):
        with pytest.raises(openai.BadRequestError, match="not supported for variations"):
            await client.images.create_variation(image=IMAGE, model=MODEL, extra_body=extra)


async def test_files_beyond_the_limit_are_refused(core: ScriptedImages, tmp_path: Path) -> None:
    there, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_: Event) -> None:
        there.set()
        await go_on.wait()

    core.between = wait
    async with served(core, tmp_path, at_once=1) as channel, official_client(channel) as client:
        first = asyncio.create_task(client.images.edit(image=IMAGE, prompt="x", model=MODEL))
        await asyncio.wait_for(there.wait(), PATIENCE_SECONDS)
        with pytest.raises(openai.RateLimitError, match="no more are accepted"):
            await client.images.edit(image=IMAGE, prompt="x", model=MODEL)
        go_on.set()
        await first
        assert (await client.images.edit(image=IMAGE, prompt="x", model=MODEL)).data


async def test_unknown_model_is_reported_by_name(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        await client.images.generate(prompt="x", model="nobody")


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
        stub = typed_pb2_grpc.ImageServiceStub(channel)
        call = stub.StreamEditImage(edit)
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "ALLM_IMAGE_UPLOAD_BYTES" in (await call.details() or "")
        assert dict(await call.trailing_metadata())["retry-after"] == "5"
        go_on.set()
        await first
        assert [event.WhichOneof("event") async for event in stub.StreamEditImage(edit)][-1] == "finished"
        plain = image_service_pb2.GenerateImageRequest(config=config, prompt="x")
        assert (await stub.GenerateImage(plain)).images
