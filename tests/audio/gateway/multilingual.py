"""The multilingual base model in a running stack: registered by the tests that need it, and removed afterwards."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.stack import POLL_SECONDS, Stack
from tests.whisper_weights import base_ct2

BASE = "whisper-base"
READY_SECONDS = 60


@contextmanager
def base_registered(stack: Stack) -> Iterator[str]:
    """Registers the model, waits until it is usable, and yields its id."""
    folder = stack.home / "models" / BASE
    folder.mkdir(parents=True)
    for file in base_ct2().iterdir():
        try:
            os.link(file, folder / file.name)
        except OSError:
            shutil.copyfile(file, folder / file.name)
    _call(stack, "POST", "/models", {"id": BASE, "source": folder.as_uri(), "format": "whisper"})
    try:
        deadline = time.monotonic() + READY_SECONDS
        while BASE not in [model["id"] for model in _call(stack, "GET", "/models")["data"]]:
            assert time.monotonic() < deadline, stack.output()
            time.sleep(POLL_SECONDS)
        yield BASE
    finally:
        _call(stack, "DELETE", f"/models/{BASE}")
        shutil.rmtree(folder)


def _call(stack: Stack, method: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{stack.base_url}{path}", data, method=method)
    with urllib.request.urlopen(request, timeout=READY_SECONDS) as reply:
        return json.load(reply)
