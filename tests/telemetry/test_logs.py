"""Log lines: one JSON object each, with the request id."""

from __future__ import annotations

import contextvars
import json
import logging
import re
import subprocess
import sys
import time

import pytest

from services.telemetry import logs
from services.telemetry.logs import JsonFormatter


def line(record: logging.LogRecord) -> dict:
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("a.b").makeRecord("a.b", logging.INFO, "f.py", 1, message, args, None, extra=extra)


def test_a_line_has_time_level_logger_and_message() -> None:
    entry = line(record("hello %s", "you"))
    assert set(entry) == {"ts", "level", "logger", "msg"}
    assert (entry["level"], entry["logger"], entry["msg"]) == ("info", "a.b", "hello you")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["ts"])


def test_extra_facts_of_any_type_become_fields() -> None:
    entry = line(record("x", model="m", usage={"prompt": 3}, path=re.compile("a")))
    assert entry["model"] == "m"
    assert entry["usage"] == {"prompt": 3}
    assert "re.compile" in entry["path"]


def test_line_breaks_and_other_scripts_stay_in_one_line() -> None:
    assert line(record("a\nb\r\u2028 größer 😀"))["msg"] == "a\nb\r\u2028 größer 😀"


def test_the_request_id_is_in_the_line_only_inside_a_request() -> None:
    def inside() -> dict:
        logs.request_id.set("id-7")
        return line(record("x"))

    assert contextvars.copy_context().run(inside)["request_id"] == "id-7"
    assert "request_id" not in line(record("x"))


def test_exception_is_logged_in_full_on_the_same_line() -> None:
    try:
        json.loads("deep\nproblem")
    except ValueError:
        failed = logging.getLogger("a").makeRecord("a", logging.ERROR, "f.py", 1, "failed", (), sys.exc_info())
    entry = line(failed)
    assert "Traceback" in entry["exception"]
    assert "JSONDecodeError: Expecting value" in entry["exception"]


PROGRAM = """
import logging
from services.telemetry.logs import setup_logs
setup_logs("warning")
logging.getLogger("a").info("too quiet")
logging.getLogger("a").warning("half a pair: \\ud800")
"""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_setup_sends_everything_from_the_level_on_to_stderr_in_utc(encoding: str) -> None:
    before = time.time()
    environ = {"PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": encoding, "TZ": "Asia/Tokyo"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, env=environ, check=True)
    assert done.stdout == b""
    (only,) = done.stderr.decode().splitlines()
    assert "half a pair" in json.loads(only)["msg"]
    reported = json.loads(only)["ts"]
    assert (
        time.strftime("%Y-%m-%dT%H", time.gmtime(before)) <= reported <= time.strftime("%Y-%m-%dT%H:~", time.gmtime())
    )
