"""README.md as a newcomer follows it: a fresh clone, `make serve`, then every block, pasted line by line.

The environment that make has installed is linked into the clone, whose code runs. The hub is the one on loopback.
Only the port differs, because another program may have README's.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.case import case
from tests.clients.node import CLIENTS, NODE
from tests.demo_model import demo_model
from tests.loopback_hub import LoopbackHub
from tests.ports import free_port
from tests.stack import POLL_SECONDS, environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ADDRESS = "127.0.0.1:8080"  # in README
SERVE = "make serve\n"
SECONDS = 240  # for one block, or the start, on a busy machine
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INTERPRETERS = {"sh": ("bash", "-euo", "pipefail", "-c"), "python": (sys.executable, "-c"), "js": (str(NODE), "-e")}
# What each block must print, by words in it. A block without an entry fails the test.
PRINTED = {
    "/v1/chat/completions": "The capital of France is Paris.",
    "/v1/audio/transcriptions": '"text":',
    "/v1/images/generations": '"url":',
    "allm run smollm2-135m-instruct": "The capital of France is Paris.",
    "allm pull": "qwen3-0.6b is ready",
    "from openai import": "Hello",
    "@grpc/grpc-js": "Hello",
}


def blocks() -> list[tuple[str, str]]:
    """Returns the language and the text of every block in README, in order."""
    return BLOCK.findall((ROOT / "README.md").read_text())


def git(*arguments: str | Path, given: bytes = b"") -> bytes:
    return subprocess.run(["git", *arguments], input=given, capture_output=True, check=True).stdout


def clone(folder: Path) -> None:
    """Clones the repository with the changes of its working tree, and links the environment that make has installed."""
    git("clone", "--quiet", ROOT, folder)
    if changes := git("-C", ROOT, "diff", "--binary", "HEAD"):
        git("-C", folder, "apply", "--index", "--whitespace=nowarn", given=changes)
    with (folder / "CHANGELOG.md").open("a") as file:
        file.write("A newcomer's change.\n")  # for `git diff`, which does not show what is in the index
    (installed := folder / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if not path.name.startswith("."):
            (installed / path.name).symlink_to(path)
    (installed / ".run").touch()  # as make does after the installation


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as running:
        yield running


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, hub: LoopbackHub) -> dict[str, str]:
    """The variables of the newcomer's terminals, with the clone in `PWD`."""
    home = tmp_path_factory.mktemp("readme")
    (home / "repository").mkdir()
    shutil.copyfile(demo_model(), home / "repository" / "Qwen3-0.6B-Q8_0.gguf")
    hub.add("Qwen/Qwen3-0.6B-GGUF", home / "repository")
    clone(home / "allm")
    given = {
        "ALLM_PORT": str(free_port()),
        "ALLM_DEVICE": "cpu",  # a build for the GPU takes minutes
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home / "hf"),
        "NODE_PATH": str(CLIENTS / "node_modules"),
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(home / "allm"), str(home / "allm" / "gen"), os.environ.get("PYTHONPATH")))
        ),
        "PWD": str(home / "allm"),
    }
    return environment(home / ".allm", **given)


@pytest.fixture(scope="module")
def served(settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs `make serve` until Ctrl-C; yields its output."""
    output = tmp_path_factory.mktemp("output") / "serve.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-c", SERVE],
            cwd=settings["PWD"],
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + SECONDS
        while "Ctrl-C stops it." not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(POLL_SECONDS)
        yield output
        os.killpg(process.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches the whole group
        process.wait(SECONDS)
        assert "Stopping." in output.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_every_block_works_as_it_stands(settings: dict[str, str], served: Path) -> None:
    assert settings["PWD"] in served.read_text(), "the code of the clone runs"
    first, *others = blocks()
    assert first == ("sh", SERVE)
    assert len(others) == len(PRINTED)
    for language, text in others:
        with case(block=text):
            expected = [printed for words, printed in PRINTED.items() if words in text]
            assert len(expected) == 1, "PRINTED says what the block must print"
            done = subprocess.run(
                [*INTERPRETERS[language], text.replace(ADDRESS, f"127.0.0.1:{settings['ALLM_PORT']}")],
                cwd=settings["PWD"],
                env=settings,
                # What the newcomer types in the conversation; elsewhere it would be more of the prompt.
                input="What is the capital of France?" if "git diff" in text else "",
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
            )
            assert done.returncode == 0, done.stderr
            assert expected[0] in done.stdout, (done.stdout, done.stderr)
            for url in re.findall(r'"url": ?"([^"]+)"', done.stdout):
                with urllib.request.urlopen(url, timeout=SECONDS) as picture:
                    assert picture.read(4) == b"\x89PNG"
