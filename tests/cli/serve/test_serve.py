"""`allm serve` with real processes: output, restarts and leftovers. A test that stops a stack runs its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.cli.serve import serve
from services.cli.serve.serve import NO_AUDIO, NO_IMAGE, check_traces, with_installed
from services.settings.setting import SettingError
from services.settings.settings import load_settings
from tests.operator_side import Operator
from tests.processes import has_ended
from tests.stack import IMAGE_MODEL, MODEL, POLL_SECONDS, SPEECH_MODEL, Stack, environment, running_stack
from tests.text.service import suspended, typed_chat, typed_stream, wait_until, workers

PATIENCE_SECONDS = 60
TOKENS = 64


def processes(stack: Stack) -> list[psutil.Process]:
    """Returns all processes under the supervisor, including model workers."""
    return psutil.Process(stack.process.pid).children(recursive=True)


def open_chat(stack: Stack, **parameters: Any) -> Any:
    """Starts a streamed chat; the caller must read and close the response."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Count to ten."}], "stream": True, **parameters}
    request = urllib.request.Request(f"{stack.base_url}/chat/completions", json.dumps(body).encode())
    return urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)


def wait_all_gone(gone: list[psutil.Process]) -> None:
    """Waits until all have ended; an unreaped zombie counts as ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    for process in gone:
        while not has_ended(process):
            assert time.monotonic() < deadline, process
            psutil.wait_procs([process], timeout=POLL_SECONDS)


def test_one_table_and_three_lines_to_try(stack: Stack) -> None:
    output = stack.home / "output.txt"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "Ctrl-C" not in (shown := output.read_text()):  # its last line
        assert time.monotonic() < deadline, shown
        time.sleep(POLL_SECONDS)
    addresses = (stack.base_url, stack.grpc_address, *stack.note["metrics"].values())
    for expected in (*addresses, MODEL, SPEECH_MODEL, IMAGE_MODEL, "ready"):
        assert expected in shown
    assert "the text, audio and image services" in shown
    (page,) = [line.split()[-2] for line in shown.splitlines() if "In a browser" in line]
    browser = urllib.request.Request(page, headers={"accept": "text/html"})
    with urllib.request.urlopen(browser, timeout=PATIENCE_SECONDS) as reply:
        assert "text/html" in reply.headers["content-type"]
    curl, transcribing, drawing = [line for line in shown.splitlines() if line.startswith("curl ")]
    assert f"{stack.base_url}/chat/completions" in curl
    assert f'"model": "{MODEL}"' in curl
    answer = subprocess.run(shlex.split(curl), capture_output=True, timeout=PATIENCE_SECONDS, check=True).stdout
    assert json.loads(answer)["choices"][0]["message"]["content"] == "The capital of France is Paris."
    heard = subprocess.run(shlex.split(transcribing), capture_output=True, timeout=PATIENCE_SECONDS, check=True).stdout
    assert "Dashwood" in json.loads(heard)["text"]
    assert f"{stack.base_url}/images/generations" in drawing  # tests/image/gateway runs it


def test_logs_are_json_lines_without_prompts(stack: Stack) -> None:
    with open_chat(stack, messages=[{"role": "user", "content": "xylophone"}], max_tokens=2) as response:
        response.read()
    deadline = time.monotonic() + PATIENCE_SECONDS
    gateway, text = (stack.home / "logs" / f"{name}.log" for name in ("gateway", "text"))
    while "/v1/chat/completions" not in gateway.read_text():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)
    for log in (gateway, text):
        assert "xylophone" not in log.read_text()
        for line in log.read_text().splitlines():
            assert isinstance(json.loads(line), dict), line


def test_a_stop_lets_streams_of_both_kinds_end_and_leaves_nothing(tmp_path: Path) -> None:
    with running_stack(tmp_path) as stack:
        with open_chat(stack, max_tokens=2) as response:  # starts a worker before the stop
            response.read()
        children, folder = processes(stack), Path(stack.note["folder"])
        assert len(children) >= 3
        request = typed_chat("Count.", max_tokens=TOKENS, ignore_eos=True)
        with open_chat(stack, max_tokens=TOKENS, ignore_eos=True) as response, typed_stream(stack, request) as typed:
            first, events = response.readline(), [next(typed)]
            with suspended(workers(stack)):  # the streams cannot end before the signal
                stack.process.send_signal(signal.SIGINT)
                wait_until(stack, lambda: "waiting up to" in stack.output())
            rest = response.read()
            events.extend(typed)
        assert first.startswith(b"data: ")
        assert rest.endswith(b"data: [DONE]\n\n")
        assert events[-1].finished.usage.completion_tokens == TOKENS
        assert stack.process.wait(PATIENCE_SECONDS) == 0, stack.output()
        wait_all_gone(children)
        assert not folder.exists()
        assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("child", ["text", "gateway", "catalog", "audio", "image"])
def test_a_killed_child_comes_back_on_the_same_port(breakable: Operator, child: str) -> None:
    stack, output = breakable.stack, breakable.stack.home / "output.txt"
    old, seen = stack.note["children"][child], len(output.read_text())
    os.kill(old, signal.SIGKILL)
    breakable.until(lambda: stack.note["children"].get(child) not in (None, old))
    breakable.until(lambda: f"{child} is running again" in output.read_text()[seen:])
    stack.wait_healthy()
    with open_chat(stack, max_tokens=4) as response:
        assert response.read().endswith(b"data: [DONE]\n\n")
    assert f"{child} was killed by SIGKILL" in output.read_text()[seen:]


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, str]]:
    """A stack that requires keys and does not wait long for a silent child; and a key."""
    home = tmp_path_factory.mktemp("impatient") / "home"
    with running_stack(home, ALLM_AUTH="keys", ALLM_HANG_SECONDS="5") as running:
        command = [sys.executable, "-m", "services.cli", "keys", "create", "me", "--scope", "inference", "--json"]
        made = subprocess.run(command, env=environment(home), capture_output=True, check=True, timeout=PATIENCE_SECONDS)
        yield running, json.loads(made.stdout)["secret"]


@pytest.mark.parametrize("child", ["authorizer", "gateway", "catalog", "text"])
def test_a_stopped_child_is_replaced(impatient: tuple[Stack, str], child: str) -> None:
    """Its workers are stopped as well: they cannot notice its end, and must not stay behind."""
    stack, key = impatient
    wait_until(stack, lambda: status(stack, key) == 200)
    before, seen = stack.note["children"], len((stack.home / "output.txt").read_text())
    stopped = psutil.Process(before[child])
    gone = [stopped, *stopped.children(recursive=True)]
    assert (len(gone) > 1) == (child == "text"), "it has a worker"
    for process in gone:
        process.suspend()
    wait_all_gone(gone)
    wait_until(stack, lambda: stack.note["children"].get(child) not in (None, before[child]))
    wait_until(stack, lambda: status(stack, key) == 200)
    said = f"{child} did not answer for 5 s (ALLM_HANG_SECONDS; the process was stopped)"
    assert f"{said} and was killed" in (stack.home / "output.txt").read_text()[seen:]
    assert f"{said}: killing it" in (stack.home / "logs" / f"{child}.log").read_text()


def status(stack: Stack, key: str) -> int:
    """Returns the status of a short chat; 0: no connection, or no answer soon."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{stack.base_url}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_kill_9_leaves_no_orphans_and_the_next_run_tidies_up(tmp_path: Path) -> None:
    with running_stack(tmp_path) as stack:
        with open_chat(stack, max_tokens=4) as response:  # starts a worker as well
            response.read()
        children, folder = processes(stack), Path(stack.note["folder"])
        assert len(children) >= 3
        stack.process.kill()
        stack.process.wait()
        wait_all_gone(children)
    assert folder.exists()
    with running_stack(tmp_path) as stack:
        assert not folder.exists()
        stops_at_once(stack)


def stops_at_once(stack: Stack) -> None:
    """Checks that a second signal ends the stack without waiting for running requests."""
    children = processes(stack)
    with open_chat(stack, max_tokens=4000, ignore_eos=True) as response:
        response.readline()
        stack.process.send_signal(signal.SIGINT)
        wait_until(stack, lambda: "waiting up to" in stack.output())
        stack.process.send_signal(signal.SIGINT)
        assert stack.process.wait(PATIENCE_SECONDS) == 0
        wait_all_gone(children)


OPTIONAL = ("audio", "image")
SAID = {"audio": NO_AUDIO, "image": NO_IMAGE}


def test_installed_services_start_without_a_message(tmp_path: Path) -> None:
    said: list[str] = []
    settings = load_settings({"ALLM_HOME": str(tmp_path), "ALLM_AUDIO_REPLICAS": "2"})
    assert with_installed(settings, said.append) is settings
    assert said == []


@pytest.mark.parametrize("service", OPTIONAL)
def test_without_its_packages_a_service_is_off_and_a_hint_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, service: str
) -> None:
    monkeypatch.setattr(serve, f"{service.upper()}_PACKAGES", ("numpy", "no_such_package"))
    said: list[str] = []
    settings = with_installed(load_settings({"ALLM_HOME": str(tmp_path)}), said.append)
    replicas = {"audio": settings.audio_replicas, "image": settings.image_replicas}
    assert replicas == {name: int(name != service) for name in OPTIONAL}
    assert said == [SAID[service]]
    assert f"pip install 'allm-server[{service}]'" in said[0]
    assert f"ALLM_{service.upper()}_REPLICAS=0" in said[0]


def test_disabled_service_prints_no_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for service in OPTIONAL:
        monkeypatch.setattr(serve, f"{service.upper()}_PACKAGES", ("no_such_package",))
    said: list[str] = []
    environ = {"ALLM_HOME": str(tmp_path), "ALLM_AUDIO_REPLICAS": "0", "ALLM_IMAGE_REPLICAS": "0"}
    settings = with_installed(load_settings(environ), said.append)
    assert (settings.audio_replicas, settings.image_replicas) == (0, 0)
    assert said == []


def test_traces_without_their_packages_stop_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environ = {"ALLM_HOME": str(tmp_path)}
    wanted = load_settings({**environ, "ALLM_OTLP_ENDPOINT": "http://collector"})
    check_traces(wanted)
    for missing in ("no_such_package", "no_such_package.part", "opentelemetry.no_such_part"):
        monkeypatch.setattr(serve, "TRACES_PACKAGES", (missing,))
        with pytest.raises(SettingError, match=r"ALLM_OTLP_ENDPOINT.*pip install 'allm-server\[traces\]'"):
            check_traces(wanted)
        check_traces(load_settings(environ))
