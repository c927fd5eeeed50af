"""`allm run` against a real stack: one answer, a pipe, JSON, a conversation in a terminal, wrong input."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.cli.run import finished, split_prompt
from tests.stack import MODEL, Stack, environment

SECONDS = 120.0
CAPITAL = "What is the capital of France?"
SHORT = ("--set", "temperature=0", "--set", "max_tokens=4")
COMMAND = (sys.executable, "-m", "services.cli", "run")


def run(stack: Stack, *arguments: str, piped: str = "") -> subprocess.CompletedProcess[str]:
    command = (*COMMAND, *arguments)
    environ = environment(stack.home)
    return subprocess.run(
        command, env=environ, input=piped, capture_output=True, text=True, check=False, timeout=SECONDS
    )


def test_it_answers_one_prompt(stack: Stack) -> None:
    done = run(stack, MODEL, CAPITAL, "--set", "temperature=0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "The capital of France is Paris.\n", "")


def test_what_comes_through_a_pipe_follows_the_prompt(stack: Stack) -> None:
    document = json.loads(run(stack, MODEL, "--json", *SHORT, piped=CAPITAL).stdout)
    choice = document["choices"][0]
    assert choice["message"]["content"] == [{"text": "The capital of France"}]
    assert choice["finish_reason"] == "length"
    both = json.loads(run(stack, MODEL, "Be short:", "--json", *SHORT, piped=CAPITAL).stdout)
    assert both["usage"]["prompt_tokens"] > document["usage"]["prompt_tokens"]


def test_a_system_prompt_is_used(stack: Stack) -> None:
    given = json.loads(run(stack, MODEL, CAPITAL, "--json", *SHORT, "--set", "system=" + "word " * 50).stdout)
    assert given["usage"]["prompt_tokens"] > 60


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no/such", CAPITAL), "The model `no/such` does not exist;"),
        ((MODEL,), "there is no prompt"),
        ((MODEL, CAPITAL, "--image", "no/such.png"), "no/such.png cannot be read: No such file or directory"),
        ((MODEL, CAPITAL, "--set", "temperature"), "--set temperature must be NAME=VALUE"),
        ((MODEL, CAPITAL, "--set", "colour=1"), "colour is none of system, temperature"),
        ((MODEL, CAPITAL, "--set", "seed=0.5"), "seed must be an integer, not 0.5"),
        ((MODEL, CAPITAL, "--set", "top_k=99999999999"), "top_k must be an integer"),
        ((MODEL, CAPITAL, "--set", "temperature=9"), "'temperature' must be 0 to 2"),
    ],
)
def test_wrong_input_gets_one_line(stack: Stack, arguments: tuple[str, ...], words: str) -> None:
    done = run(stack, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"allm: {words}")
    assert done.stderr.count("\n") == 1


class Terminal:
    """A pseudo-terminal in which the command runs."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def until(self, words: str) -> str:
        """Reads until the words are on the screen, and returns all that was read, without control sequences."""
        read, deadline = b"", time.monotonic() + SECONDS
        while words not in (shown := re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read.decode(errors="replace"))):
            assert time.monotonic() < deadline, shown
            if select.select([self._descriptor], [], [], 1)[0]:
                read += os.read(self._descriptor, 65536)
        return shown


@contextmanager
def conversation(stack: Stack, home: Path) -> Iterator[Terminal]:
    """Runs a conversation; it must have ended with success at the end of the block."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, MODEL, "--address", stack.grpc_address]
    environ = {**environment(home), "TERM": "xterm"}
    with subprocess.Popen(command, env=environ, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            yield Terminal(ours, process)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
            os.close(ours)


def test_a_conversation(stack: Stack, tmp_path: Path) -> None:
    with conversation(stack, tmp_path) as terminal:
        terminal.until(">>> ")
        terminal.type("/set temperature 0\r")
        terminal.until(">>> ")
        terminal.type(CAPITAL + "\r")
        assert "The capital of France is Paris." in terminal.until("\n>>> ")
        terminal.type('"""Repeat the name\r')
        terminal.until("... ")
        terminal.type('of that city."""\r')
        assert "Paris" in terminal.until("\n>>> "), "it knows what was said before"
        for wrong, words in (
            ("/set temperature warm", "temperature must be a number, not warm"),
            ("/colour", "/colour is not a command"),
        ):
            terminal.type(f"{wrong}\r")
            assert words in terminal.until("\n>>> ")
        terminal.type("/show\r")
        assert "temperature  0" in terminal.until("\n>>> ")
        terminal.type("\x04")
    history = tmp_path / "history"
    assert CAPITAL in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_ctrl_c_stops_an_answer_and_not_the_conversation(stack: Stack, tmp_path: Path) -> None:
    with conversation(stack, tmp_path) as terminal:
        terminal.until(">>> ")
        terminal.type("/set min_tokens 4000\r")
        terminal.until(">>> ")
        terminal.type("/set temperature 0\r")
        terminal.until(">>> ")
        terminal.type(CAPITAL + "\r")
        terminal.until("Paris")
        terminal.process.send_signal(signal.SIGINT)
        assert "stopped" in terminal.until("\n>>> ")
        terminal.type("/bye\r")


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("One line", ""),
        ("One.\n\nTwo", "One.\n\n"),
        ("```\nx\n\ny\n", ""),
        ("```\nx\n\ny\n```\nafter", "```\nx\n\ny\n```\n"),
        ("a\n\n```\nb\n", "a\n\n"),
    ],
)
def test_finished_paragraphs_and_code_blocks(text: str, done: str) -> None:
    assert text[: finished(text)] == done


def test_paths_of_existing_pictures_are_taken_from_a_prompt(tmp_path: Path) -> None:
    plain, spaced = tmp_path / "a.PNG", tmp_path / "my shape.jpg"
    for path in (plain, spaced):
        path.touch()
    escaped = str(spaced).replace(" ", "\\ ")
    for prompt, text, paths in (
        (f"{plain} {escaped} Are they alike?", "Are they alike?", [plain, spaced]),
        (f"What is in '{spaced}'?", "What is in ?", [spaced]),
        (f"What is {tmp_path}/missing.png?", f"What is {tmp_path}/missing.png?", []),
        ("Is a.png/b in docs/a.PNG?", "Is a.png/b in docs/a.PNG?", []),
        ("/set system /tmp", "/set system /tmp", []),
    ):
        assert split_prompt(prompt) == (text, paths)
