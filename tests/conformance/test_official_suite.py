"""The official Python SDKs' own tests of their resources, against the real stack with the real model.

They are in the SDKs' source distributions, which `make test-all` fetches, and run in separate pytest processes, with
the plugin official_suite.py in place of their conftest.py.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.minilm import minilm
from tests.stack import MODEL, POLL_SECONDS, Stack

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SDKS = ("openai", "anthropic")
SECONDS = 500
READY_SECONDS = 60

pytestmark = pytest.mark.slow


def tiny_gguf() -> bytes:
    """Returns a GGUF header that only names an architecture: it can be registered and deleted."""
    texts = [struct.pack("<Q", len(text)) + text for text in (b"general.architecture", b"llama")]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + texts[0] + struct.pack("<I", 8) + texts[1]


@pytest.fixture(scope="module")
def embedder(stack: Stack) -> Iterator[str]:
    """An embedding model that is ready while the suite runs."""
    name = "conformance-embedder"
    with openai.OpenAI(base_url=stack.base_url, api_key="unused", max_retries=0) as client:
        body = {"id": name, "source": minilm().as_uri(), "format": "safetensors"}
        client.post("/models", body=body, cast_to=object)
        deadline = time.monotonic() + READY_SECONDS
        while name not in [model.id for model in client.models.list()]:
            assert time.monotonic() < deadline, stack.output()
            time.sleep(POLL_SECONDS)
        yield name
        client.models.delete(name)


@pytest.fixture(scope="module", params=SDKS)
def run(
    stack: Stack, embedder: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The result of a suite: exit status, output, and the plugin's report."""
    sdk = request.param
    suite = Path(sys.prefix) / f"{sdk}-suite"
    assert suite.exists(), "the official SDK's tests are missing: make test-all fetches them"
    report = tmp_path_factory.mktemp("conformance") / "report.json"
    source = stack.home / "models" / "conformance.gguf"
    source.parent.mkdir(exist_ok=True)
    source.write_bytes(tiny_gguf())
    command = [sys.executable, "-m", "pytest", "--noconftest", "-p", "official_suite", "-p", "no:cacheprovider"]
    command += ["-p", "no:langsmith_plugin", "-c", str(HERE / "suite.ini"), "--rootdir", str(suite), "--tb=short", "-q"]
    done = subprocess.run(
        command,
        cwd=suite,
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "PYTHONPATH": str(HERE),
            "TEST_API_BASE_URL": stack.base_url if sdk == "openai" else stack.base_url.removesuffix("/v1"),
            "ALLM_MODEL": MODEL,
            "ALLM_EMBEDDER": embedder,
            "ALLM_SOURCE": source.as_uri(),
            "ALLM_SUITE": f"{sdk}_suite",
            "ALLM_SUITE_REPORT": str(report),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert report.exists(), f"{done.stdout}\n{done.stderr}"
    return {**json.loads(report.read_text()), "status": done.returncode, "output": done.stdout[-20_000:]}


def test_every_case_passes(run: dict[str, Any]) -> None:
    assert run["status"] == 0, run["output"]
    wholly_left_out = {"chat/completions/test_messages.py"}
    assert set(run["outcomes"]) == {f"{file} passed" for file in run["files"] if file not in wholly_left_out}


def test_left_out_tests_still_exist(run: dict[str, Any]) -> None:
    assert set(run["left_out"]) == set(run["listed_left_out"])


def test_every_listed_refusal_still_occurs(run: dict[str, Any]) -> None:
    assert set(run["refusals"]) == set(run["listed_refusals"])


@pytest.mark.parametrize("sdk", SDKS)
def test_the_suite_is_that_of_the_installed_sdk(sdk: str) -> None:
    pinned = (HERE / f"{sdk}-sdist.txt").read_text().splitlines()[-1].split()[0]
    assert pinned == f"{sdk}=={version(sdk)}"
    assert pinned in (ROOT / "constraints.txt").read_text().splitlines()
