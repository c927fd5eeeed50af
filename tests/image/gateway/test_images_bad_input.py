"""Bad input through the real gateway: each case gets a clear error, and another caller's pictures are unaffected."""

from __future__ import annotations

import base64
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import openai
import psutil
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from tests.pictures.picture_files import file, halves
from tests.stack import IMAGE_MODEL, POLL_SECONDS, Stack

pytestmark = pytest.mark.slow  # imports torch

SIDE = 64  # pixels that the model draws
PROMPT = "a red circle on a blue background"
PATIENCE_SECONDS = 150  # on a busy machine torch alone takes half a minute
MIB = 1024 * 1024
LIMIT = 25 * MIB  # ALLM_MAX_IMAGE_BYTES
BOMB = 64 * MIB  # unpacked size of a file of some 60 KB
HALF_SENT = 5 * MIB
HUNG_UP = 5  # clients


class Neighbour:
    """A caller who generates the same picture again and again."""

    def __init__(self, client: openai.OpenAI) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._over = False
        self._drawn: list[str] = []

    def draw_on(self) -> None:
        """Generates pictures until stopped; raises any error."""
        while not self._over:
            answer = self._client.images.generate(
                model=IMAGE_MODEL, prompt=PROMPT, extra_body={"steps": 10, "seed": 7, "guidance": 2.5}
            )
            with self._changed:
                self._drawn.append((answer.data or [])[0].b64_json or "")
                self._changed.notify_all()

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Checks that the block changes neither the current picture nor the next one."""
        begun = len(self._drawn)
        yield
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._drawn) > begun, PATIENCE_SECONDS), "it draws no more"
        assert len(set(self._drawn)) == 1, "another picture"

    def stop(self) -> None:
        self._over = True


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.base_url, api_key="unused", max_retries=0, timeout=PATIENCE_SECONDS) as client:
        yield client


@pytest.fixture(scope="module")
def neighbour(client: openai.OpenAI, stack: Stack) -> Iterator[Neighbour]:
    """Runs a neighbour that has drawn a picture; checks that no worker dies during the tests."""
    neighbour = Neighbour(client)
    with ThreadPoolExecutor(1) as thread:
        drawing = thread.submit(neighbour.draw_on)
        try:
            with neighbour.undisturbed():
                pass
            processes = workers(stack)
            yield neighbour
            assert workers(stack) == processes
        finally:
            neighbour.stop()
        drawing.result(PATIENCE_SECONDS)


def workers(stack: Stack) -> tuple[int, set[int]]:
    """Returns the ids of the image service and of its workers."""
    service = psutil.Process(stack.note["children"]["image"])
    return service.pid, {child.pid for child in service.children() if "services.image.engine" in child.cmdline()}


def counted(stack: Stack, name: str, **labels: str) -> float:
    """Returns a counter of the image service."""
    page = openai.DefaultHttpxClient().get(stack.note["metrics"]["image"]).text
    found = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return sum(one.value for one in found if one.name == name and labels.items() <= one.labels.items())


def bomb() -> bytes:
    """Returns a PNG whose comment unpacks to a thousand times its size."""
    text = b"Comment\0\0" + zlib.compress(bytes(BOMB), 9)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    whole, header = image(), 33
    return whole[:header] + chunk + whole[header:]


def megapixels() -> bytes:
    """Returns a valid PNG of a hundred million pixels, in a few KB."""
    return file(Image.new("1", (10_000, 10_000)), "PNG", compress_level=9)


def image(side: int = SIDE) -> bytes:
    return file(halves(side, side))


def mask(side: int) -> bytes:
    return file(halves(side, side, left=(0, 0, 0, 0), right=(0, 0, 0, 255)))


@pytest.mark.parametrize(
    ("parameters", "param", "says"),
    [
        ({"size": "enormous"}, "size", "'enormous'"),
        ({"size": "65x64"}, "size", "65x64"),
        ({"size": "9999x9999"}, "size", "9999x9999"),
        ({"n": 0}, "n", "not 0"),
        ({"n": 100}, "n", "not 100"),
        ({"prompt": "o " * 10_000}, "prompt", "10000"),
        ({"prompt": "circle " * 10_000}, "prompt", "70000 characters; at most 32000"),
    ],
    ids=["no-size", "odd-size", "huge-size", "none", "hundred", "10000-words", "10000-long-words"],
)
def test_invalid_combinations(
    client: openai.OpenAI, neighbour: Neighbour, parameters: dict[str, Any], param: str, says: str
) -> None:
    with neighbour.undisturbed(), pytest.raises(openai.BadRequestError) as caught:
        client.images.generate(**{"model": IMAGE_MODEL, "prompt": PROMPT, **parameters})
    check(caught.value, param, says)


@pytest.mark.parametrize(
    ("files", "param", "says"),
    [
        (lambda: {"mask": mask(SIDE // 2)}, "mask", "32x32 pixels; it must have the size of 'image', 64x64"),
        (lambda: {"image": megapixels()}, "image", "100000000 pixels (10000x10000); at most 16777216"),
        (lambda: {"mask": megapixels()}, "mask", "100000000 pixels (10000x10000); at most 16777216"),
        (lambda: {"image": bomb()}, "image", "damaged"),
        (lambda: {"image": b"This is a letter. " * 100}, "image", "not a PNG, JPEG or WebP file"),
        (lambda: {"image": file(halves())[:-40]}, "image", "damaged"),
        (lambda: {"image": b""}, "image", "empty"),
    ],
    ids=["small-mask", "100-megapixels", "100-megapixels-mask", "bomb", "letter", "truncated", "empty"],
)
def test_pictures_that_cannot_be_taken(
    client: openai.OpenAI, neighbour: Neighbour, files: Callable[[], dict[str, bytes]], param: str, says: str
) -> None:
    sent = {name: (f"{name}.png", data) for name, data in ({"image": image()} | files()).items()}
    with neighbour.undisturbed(), pytest.raises(openai.BadRequestError) as caught:
        client.images.edit(model=IMAGE_MODEL, prompt=PROMPT, **sent)  # type: ignore[arg-type]
    check(caught.value, param, says)


def check(error: openai.APIStatusError, param: str, says: str) -> None:
    """Checks that the error has OpenAI's format and names the parameter."""
    assert (error.type, error.param) == ("invalid_request_error", param)
    assert says in error.message


def test_over_the_limit_is_413_with_its_setting_named(client: openai.OpenAI, neighbour: Neighbour) -> None:
    with neighbour.undisturbed(), pytest.raises(openai.APIStatusError) as caught:
        client.images.edit(model=IMAGE_MODEL, prompt=PROMPT, image=("large.png", image() + bytes(LIMIT)))
    assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
    check(caught.value, "image", f"{LIMIT} bytes (ALLM_MAX_IMAGE_BYTES)")


def test_clients_that_hang_up_in_the_middle_leave_nothing(stack: Stack, neighbour: Neighbour) -> None:
    service = psutil.Process(stack.note["children"]["image"])
    given_up: dict[str, Any] = {"name": "allm_errors_total", "rpc": "ImagesFacade.CreateImageEdit", "code": "CANCELLED"}
    before, files = counted(stack, **given_up), service.num_fds()

    def some_have_hung_up() -> bool:
        """A client counts only if the gateway had forwarded part of its upload."""
        with socket.create_connection(("127.0.0.1", stack.port), PATIENCE_SECONDS) as connection:
            connection.sendall(half_an_upload())
        return counted(stack, **given_up) >= before + HUNG_UP

    with neighbour.undisturbed():
        wait_until(some_have_hung_up)
    wait_until(lambda: service.num_fds() <= files + 2)  # the neighbour's picture may be in transfer


def half_an_upload() -> bytes:
    """Returns the first half of a form."""
    head = f'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n{IMAGE_MODEL}\r\n--b\r\n'
    head += 'content-disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    start = "POST /v1/images/edits HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=b\r\n"
    start += f"content-length: {2 * HALF_SENT}\r\n\r\n"
    return (start + head).encode() + image() + bytes(HALF_SENT)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def test_the_next_one_is_served(client: openai.OpenAI, neighbour: Neighbour) -> None:
    with neighbour.undisturbed():
        answer = client.images.edit(
            model=IMAGE_MODEL,
            prompt=PROMPT,
            image=("image.png", image()),
            mask=("mask.png", mask(SIDE)),
            extra_body={"steps": 3},
        )
    assert base64.b64decode((answer.data or [])[0].b64_json or "").startswith(b"\x89PNG")
