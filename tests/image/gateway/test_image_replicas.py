"""Two replicas of the image service behind one gateway: each serves the pictures of the other."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest
from allm.openai.v1 import image_service_pb2, image_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from tests.operator_side import Operator
from tests.stack import IMAGE_MODEL, Stack

pytestmark = pytest.mark.slow  # imports torch

PATIENCE_SECONDS = 60
FETCHES = 20


class Replica:
    """One replica, called directly so that a test can choose it."""

    def __init__(self, stack: Stack, number: int) -> None:
        self.pid: int = stack.note["children"][f"image-{number}"]
        self._socket = f"unix:{Path(stack.note['folder']) / f'image-{number}.sock'}"

    def draw(self) -> str:
        """Draws a picture and returns its URL."""
        asked = {"model": IMAGE_MODEL, "prompt": "a red circle", "steps": 2, "response_format": "url"}
        body = HttpBody(content_type="application/json", data=json.dumps(asked).encode())
        with grpc.insecure_channel(self._socket) as channel:
            pieces = image_service_pb2_grpc.ImagesServiceStub(channel).CreateImage(body, timeout=PATIENCE_SECONDS)
            url: str = json.loads(b"".join(piece.data for piece in pieces))["data"][0]["url"]
        return url

    def read(self, url: str) -> bytes:
        """Returns the picture behind a URL."""
        request = image_service_pb2.GetImageFileRequest(name=urlsplit(url).path.rpartition("/")[2])
        with grpc.insecure_channel(self._socket) as channel:
            stub = image_service_pb2_grpc.ImagesServiceStub(channel)
            pieces = stub.GetImageFile(request, timeout=PATIENCE_SECONDS, wait_for_ready=True)
            return b"".join(piece.data for piece in pieces)


def fetched(url: str) -> set[bytes]:
    """Fetches the picture repeatedly; returns all distinct contents."""
    found = set()
    for _ in range(FETCHES):
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as reply:
            found.add(reply.read())
    return found


def test_a_picture_outlives_the_replica_that_made_it(two_replicas: Operator) -> None:
    two = two_replicas.stack
    maker, other = Replica(two, 1), Replica(two, 2)
    url = maker.draw()
    assert url.startswith(f"{two.base_url}/images/files/")
    (picture,) = fetched(url)
    assert picture.startswith(b"\x89PNG")
    assert maker.read(url) == other.read(url) == picture
    os.kill(maker.pid, signal.SIGKILL)
    assert fetched(url) == {picture}
    assert other.read(url) == picture
    two_replicas.until(lambda: two.note["children"].get("image-1") not in (None, maker.pid))
    assert Replica(two, 1).read(url) == picture
