"""The catalog killed under a running stack: answers go on, what was confirmed is there, and everything converges."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.demo_model import demo_model
from tests.loopback_hub import LoopbackHub
from tests.operator_side import Operator, operating
from tests.stack import MODEL

pytestmark = pytest.mark.slow

KILLS = 2  # tests/catalog/test_crash.py does it fifty times, to the process alone


def kill_catalog(operator: Operator) -> int:
    pid: int = operator.stack.note["children"]["catalog"]
    os.kill(pid, signal.SIGKILL)
    return pid


def test_inference_goes_on_while_the_catalog_is_down_and_it_comes_back(breakable: Operator) -> None:
    operator, before = breakable, set(breakable.ready())
    assert "Paris" in operator.answer(MODEL)
    put(operator.root / "m.gguf")
    for number in range(KILLS):
        operator.taken(f"m-{number}", operator.root / "m.gguf", "gguf", aliases=[f"alias-{number}"])
        pid = kill_catalog(operator)
        # Stopped as soon as it comes back would be too late: it is asked while it is certainly down.
        assert "Paris" in operator.answer(MODEL)
        reply = operator.call("GET", "/v1/models")
        if reply.status != 200:
            assert (reply.status, reply.error["type"]) == (503, "server_error"), reply
        unknown = operator.chat("never-registered")
        assert unknown.status in (404, 503), unknown
        operator.until(lambda pid=pid: operator.stack.note["children"]["catalog"] != pid)
        operator.until(lambda: operator.call("GET", "/v1/models").status == 200)
        expected = before | {f"{kind}-{known}" for kind in ("m", "alias") for known in range(number + 1)}
        operator.until(lambda expected=expected: set(operator.ready()) == expected)
    assert "Paris" in operator.answer(f"alias-{KILLS - 1}")
    for number in range(KILLS):
        operator.delete(f"m-{number}")


def put(path: Path) -> None:
    """The demo model, at another path."""
    try:
        os.link(demo_model(), path)
    except OSError:  # another disk
        shutil.copy(demo_model(), path)


def test_a_restart_of_everything_keeps_what_is_registered(hub: LoopbackHub, tmp_path: Path) -> None:
    with operating(tmp_path, hub) as operator:
        put(operator.root / "m.gguf")
        operator.taken("mine", operator.root / "m.gguf", "gguf", aliases=["nick"])
        operator.verb("mine", "load")
        operator.until_state("mine", "loaded")
    shutil.rmtree(tmp_path / "hf", ignore_errors=True)
    (tmp_path / "models-here").rename(tmp_path / "aside")
    with operating(tmp_path, hub) as operator:
        shown = operator.until_state("mine", "failed")
        assert "m.gguf" in shown["reason"]
        (operator.root).rmdir()
        (tmp_path / "aside").rename(operator.root)
        operator.until_state("mine", "loaded")  # it is still to be kept in memory
        assert "Paris" in operator.answer("nick")
        operator.verb("mine", "unload")
        operator.until_state("mine", "ready")
