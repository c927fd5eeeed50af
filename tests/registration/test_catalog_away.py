"""The catalog killed under a running stack: inference continues, confirmed changes survive, the state converges."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.demo_model import demo_model
from tests.operator_side import Operator
from tests.stack import MODEL

pytestmark = pytest.mark.slow


def test_inference_goes_on_while_the_catalog_is_down_and_it_comes_back(breakable: Operator) -> None:
    """The catalog alone is killed many times in tests/catalog/test_crash.py."""
    operator, before = breakable, set(breakable.ready())
    assert "Paris" in operator.answer(MODEL)
    put(operator.root / "m.gguf")
    operator.taken("mine", operator.root / "m.gguf", "gguf", aliases=["nick"])
    pid: int = operator.stack.note["children"]["catalog"]
    os.kill(pid, signal.SIGKILL)
    # Request an answer immediately, while the catalog is certainly down.
    assert "Paris" in operator.answer(MODEL)
    reply = operator.call("GET", "/v1/models")
    if reply.status != 200:
        assert (reply.status, reply.error["type"]) == (503, "server_error"), reply
    unknown = operator.chat("never-registered")
    assert unknown.status in (404, 503), unknown
    operator.until(lambda: operator.stack.note["children"]["catalog"] != pid)
    operator.until(lambda: operator.call("GET", "/v1/models").status == 200)
    operator.until(lambda: set(operator.ready()) == before | {"mine", "nick"})
    assert "Paris" in operator.answer("nick")
    operator.delete("mine")


def put(path: Path) -> None:
    """Links or copies the demo model to `path`."""
    try:
        os.link(demo_model(), path)
    except OSError:  # another disk
        shutil.copy(demo_model(), path)
