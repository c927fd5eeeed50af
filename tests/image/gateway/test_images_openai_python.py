"""The unmodified official Python SDK generates images through the real gateway with the bundled model."""

from __future__ import annotations

import base64
import io
import json
import shlex
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import openai
import pytest
from allm.image.v1 import image_service_pb2, image_service_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from PIL import Image

from tests.pictures.picture_files import file, halves, png_header
from tests.stack import IMAGE_MODEL, MODEL, Stack

# A worker needs some ten seconds to import torch and diffusers.
pytestmark = pytest.mark.slow

SIDE = 64  # pixels that the model draws
SERVICE = "allm.image.v1.ImageService"
PROMPT = "a red circle"
PATIENCE_SECONDS = 150  # on a busy machine torch alone takes half a minute
FEW: dict[str, Any] = {"extra_body": {"steps": 2, "seed": 7}}
# OpenAI retired variations in its own API: the SDK warns about them.
variations = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.base_url, api_key="unused", max_retries=0, timeout=PATIENCE_SECONDS) as client:
        yield client


def pictures(answer: Any) -> list[Image.Image]:
    return [Image.open(io.BytesIO(base64.b64decode(each.b64_json))) for each in answer.data]


def left_open(side: int = SIDE) -> bytes:
    """Returns a mask that leaves the left half open for drawing."""
    return file(halves(side, side, left=(0, 0, 0, 0), right=(0, 0, 0, 255)))


def image(side: int = SIDE) -> bytes:
    return file(halves(side, side))


def test_the_printed_curl_command_works_and_its_url_can_be_fetched(stack: Stack) -> None:
    (line,) = [line for line in (stack.home / "output.txt").read_text().splitlines() if "/images/generations" in line]
    answer = subprocess.run(shlex.split(line), capture_output=True, timeout=PATIENCE_SECONDS, check=True).stdout
    with urllib.request.urlopen(json.loads(answer)["data"][0]["url"], timeout=PATIENCE_SECONDS) as reply:
        assert Image.open(io.BytesIO(reply.read())).size == (SIDE, SIDE)


def test_base64_is_the_default_and_a_seed_repeats_the_picture(client: openai.OpenAI) -> None:
    answer = client.images.generate(model=IMAGE_MODEL, prompt=PROMPT, n=2, **FEW)
    drawn = pictures(answer)
    assert [each.size for each in drawn] == [(SIDE, SIDE)] * 2
    assert [each.to_dict()["seed"] for each in answer.data or []] == [7, 8]
    assert (answer.size, answer.output_format) == (f"{SIDE}x{SIDE}", "png")
    assert answer.usage is not None
    assert answer.usage.output_tokens == 2 * (SIDE // 16) ** 2
    again = client.images.generate(model=IMAGE_MODEL, prompt=PROMPT, extra_body={"steps": 2, "seed": 8})
    assert len(pictures(again)) == 1
    alone = client.images.generate(model=IMAGE_MODEL, prompt=PROMPT, extra_body={"steps": 2, "seed": 8})
    assert pictures(alone)[0].tobytes() == pictures(again)[0].tobytes()
    assert drawn[0].tobytes() != drawn[1].tobytes()


def test_a_url_leads_through_the_gateway_to_the_picture(stack: Stack, client: openai.OpenAI) -> None:
    answer = client.images.generate(
        model=IMAGE_MODEL, prompt=PROMPT, size="48x32", output_format="jpeg", response_format="url", **FEW
    )
    (drawn,) = answer.data or []
    assert drawn.b64_json is None
    assert (drawn.url or "").startswith(f"{stack.base_url}/images/files/"), "the port was chosen at the start"
    with urllib.request.urlopen(drawn.url or "", timeout=PATIENCE_SECONDS) as reply:
        assert reply.headers["content-type"] == "image/jpeg"
        picture = Image.open(io.BytesIO(reply.read()))
    assert (picture.size, picture.format) == ((48, 32), "JPEG")


@pytest.mark.parametrize("name", ["x.png", f"{'a' * 32}.png", "..%2F..%2Frun.json"])
def test_other_names_lead_nowhere(stack: Stack, name: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{stack.base_url}/images/files/{name}", timeout=PATIENCE_SECONDS)
    with caught.value as reply:
        assert (reply.code, json.load(reply)["error"]["code"]) == (404, "image_not_found")


def test_a_stream_shows_what_it_looks_like_so_far(client: openai.OpenAI) -> None:
    stream = client.images.generate(
        model=IMAGE_MODEL, prompt=PROMPT, stream=True, partial_images=2, extra_body={"steps": 6, "seed": 7}
    )
    *partials, last = list(stream)
    assert [event.type for event in partials] == ["image_generation.partial_image"] * 2
    assert [getattr(event, "partial_image_index", None) for event in partials] == [0, 1]
    assert last.type == "image_generation.completed"
    shown = [Image.open(io.BytesIO(base64.b64decode(event.b64_json))) for event in (*partials, last)]
    assert {each.size for each in shown} == {(SIDE, SIDE)}
    assert len({each.tobytes() for each in shown}) == 3
    assert last.usage.total_tokens == last.usage.input_tokens + last.usage.output_tokens


def test_masked_area_is_redrawn_and_the_rest_hardly_changes(client: openai.OpenAI) -> None:
    """Compares two seeds: the results differ only under the mask."""
    answers = [
        client.images.edit(
            model=IMAGE_MODEL,
            image=("i.png", image()),
            mask=("m.png", left_open()),
            prompt=PROMPT,
            extra_body={"seed": seed, "steps": 10},
        )
        for seed in (1, 2)
    ]
    one, other = (pictures(answer)[0] for answer in answers)
    assert one.size == (SIDE, SIDE)
    halves_of = [[each.crop(box).tobytes() for each in (one, other)] for box in ((0, 0, 16, SIDE), (48, 0, SIDE, SIDE))]
    changes = [sum(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in halves_of]
    assert changes[0] > 5 * changes[1]  # measured: about 50 times


def test_an_edit_without_a_mask_streams(client: openai.OpenAI) -> None:
    stream = client.images.edit(
        model=IMAGE_MODEL,
        image=("i.png", image()),
        prompt=PROMPT,
        stream=True,
        partial_images=1,
        extra_body={"steps": 8},
    )
    assert [event.type for event in stream] == ["image_edit.partial_image", "image_edit.completed"]


@variations
def test_variations_of_a_large_picture(client: openai.OpenAI) -> None:
    """The file is larger than the gateway's buffer."""
    large = Image.effect_noise((1500, 1500), 100).convert("RGB")
    data = file(large)
    assert len(data) > 2 * 1024 * 1024
    answer = client.images.create_variation(model=IMAGE_MODEL, image=("i.png", data), n=2, extra_body={"steps": 4})
    assert [each.size for each in pictures(answer)] == [(SIDE, SIDE)] * 2


@pytest.mark.parametrize(
    ("parameters", "status", "param", "code"),
    [
        ({"model": "nobody"}, 404, "model", "model_not_found"),
        ({"model": MODEL}, 400, "model", "unsupported"),
        ({"n": 0}, 400, "n", None),
        ({"n": 100}, 400, "n", None),
        ({"size": "65x64"}, 400, "size", None),
        ({"size": "4096x4096"}, 400, "size", None),
        ({"prompt": "word " * 5_000}, 400, "prompt", None),
        ({"background": "transparent"}, 400, "background", "unsupported"),
        ({"extra_body": {"scheduler": "nobody"}}, 400, "scheduler", None),
        ({"extra_body": {"steps": 100_000}}, 400, "steps", None),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_errors(client: openai.OpenAI, parameters: dict[str, Any], status: int, param: str, code: str | None) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.images.generate(**{"model": IMAGE_MODEL, "prompt": PROMPT, **parameters})
    error = caught.value
    assert (error.status_code, error.param, error.code) == (status, param, code), error


@pytest.mark.parametrize(
    ("files", "param", "says"),
    [
        ({"mask": ("m.png", left_open(SIDE // 2))}, "mask", f"{SIDE // 2}x{SIDE // 2}"),
        ({"image": ("i.png", png_header(10_000, 10_000))}, "image", "100000000"),
        ({"image": ("i.png", b"GIF89a" + bytes(100))}, "image", "PNG"),
        ({"image": ("i.png", image()[:-40])}, "image", "damaged"),
    ],
    ids=["mask-of-another-size", "100-megapixels", "no-picture", "cut-off"],
)
def test_pictures_that_cannot_be_taken(client: openai.OpenAI, files: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.edit(**{"model": IMAGE_MODEL, "image": ("i.png", image()), "prompt": PROMPT, **files})
    assert caught.value.param == param, caught.value
    assert says.lower() in caught.value.message.lower()


def test_an_image_model_does_not_chat(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=IMAGE_MODEL, messages=[{"role": "user", "content": "Hello?"}])
    assert (caught.value.param, caught.value.code) == ("model", "unsupported")


def test_grpc_callers_see_every_step(stack: Stack) -> None:
    with grpc.insecure_channel(stack.grpc_address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in database.get_services()
        assert "StreamGenerateImage" in str(database.FindFileContainingSymbol(SERVICE)), "described on the same port"
        request = image_service_pb2.StreamGenerateImageRequest(config={"model": IMAGE_MODEL, "steps": 5}, prompt=PROMPT)
        stream = image_service_pb2_grpc.ImageServiceStub(channel).StreamGenerateImage(request, timeout=PATIENCE_SECONDS)
        first, *others = list(stream)
    assert first.started.model == IMAGE_MODEL
    assert [each.WhichOneof("event") for each in others[-2:]] == ["image", "finished"]
    steps = [each.progress.step for each in others[:-2]]
    assert steps == sorted(set(steps))
    assert steps
    assert Image.open(io.BytesIO(others[-2].image.data)).size == (SIDE, SIDE)


@pytest.mark.parametrize("whole", ["EditImage", "CreateVariation"])
def test_a_streamed_edit_reports_every_step_and_equals_the_whole_answer(stack: Stack, whole: str) -> None:
    """At most twelve steps; the strength skips some of them."""
    fields = {"prompt": PROMPT, "mask": left_open()} if whole == "EditImage" else {}
    config = {"model": IMAGE_MODEL, "steps": 12, "seed": 7}
    request = getattr(image_service_pb2, f"{whole}Request")(config=config, image=image(), strength=0.75, **fields)
    reported = getattr(image_service_pb2, f"Stream{whole}Request").FromString(request.SerializeToString())
    reported.partial_images = 2
    with grpc.insecure_channel(stack.grpc_address) as channel:
        stub = image_service_pb2_grpc.ImageServiceStub(channel)
        answer = getattr(stub, whole)(request, timeout=PATIENCE_SECONDS)
        events = list(getattr(stub, f"Stream{whole}")(reported, timeout=PATIENCE_SECONDS))
    kinds = [each.WhichOneof("event") for each in events]
    assert (kinds[0], kinds[-2:]) == ("started", ["image", "finished"])
    assert events[0].started.parameters == answer.parameters
    progress = [each.progress for each in events if each.HasField("progress")]
    steps = [each.step for each in progress]
    assert steps == sorted(set(steps))
    assert {each.steps for each in progress} == {9}
    partials = [each.partial for each in events if each.HasField("partial")]
    assert [each.number for each in partials] == [0, 1]
    shown = [Image.open(io.BytesIO(each.image.data)) for each in partials]
    assert {each.size for each in shown} == {(SIDE, SIDE)}
    assert shown[0].tobytes() != shown[1].tobytes()
    assert events[-2].image == answer.images[0]
