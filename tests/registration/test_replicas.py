"""Two text services behind one gateway: models ready on both or on one, and the death of a replica."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from http.client import HTTPMessage, IncompleteRead
from pathlib import Path

import psutil
import pytest

from tests.demo_model import demo_model
from tests.loopback_hub import LoopbackHub
from tests.operator_side import Operator, Reply
from tests.stack import MODEL

pytestmark = pytest.mark.slow

WEIGHTS = "demo.gguf"
CUT = 0  # stands for the status of a truncated response


@pytest.fixture
def two(two_replicas: Operator) -> Operator:
    return two_replicas


def replicas(operator: Operator, model_id: str) -> dict[str, str]:
    """Returns the state of a model on each replica."""
    return {replica["replica"]: replica["state"] for replica in operator.all()[model_id]["replicas"]}


def until_ready_on(operator: Operator, model_id: str, *names: str) -> None:
    def is_so() -> bool:
        states = replicas(operator, model_id)
        return {name for name, state in states.items() if state in ("ready", "loaded")} == set(names)

    operator.until(is_so)


class Clients:
    """Clients in several threads that send requests without retries until the block ends."""

    def __init__(self, operator: Operator, model_id: str, count: int = 3) -> None:
        self.of_each: list[list[Reply]] = [[] for _ in range(count)]
        self._operator = operator
        self._model = model_id
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(replies,)) for replies in self.of_each]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def replies(self) -> list[Reply]:
        """Returns the replies of all threads."""
        return [reply for replies in self.of_each for reply in replies]

    def _ask(self, replies: list[Reply]) -> None:
        while not self._stop.is_set():
            try:
                replies.append(self._operator.chat(self._model, "Hi.", max_tokens=2))
            except IncompleteRead as cut:  # its replica died during the response
                replies.append(Reply(CUT, HTTPMessage(), cut.partial))

    def more(self, count: int) -> None:
        """Waits until `count` more requests have been answered."""
        until = len(self.replies) + count
        self._operator.until(lambda: len(self.replies) >= until)

    @property
    def failed(self) -> list[Reply]:
        return [reply for reply in self.replies if reply.status != 200]


def test_a_registered_model_becomes_ready_on_both_with_one_download(
    two: Operator, hub: LoopbackHub, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    shutil.copy(demo_model(), folder / WEIGHTS)
    hub.add("org/both", folder)
    two.taken("both", "hf://org/both", "gguf")
    until_ready_on(two, "both", "text-1", "text-2")
    size = demo_model().stat().st_size
    assert size <= hub.sent < 1.5 * size, "they share the folder"
    two.delete("both")
    models = two.stack.home / "models"
    # Not rglob: it fails if a folder vanishes during the walk.
    two.until(lambda: not [top for top, _, files in os.walk(models) if WEIGHTS in files and ".partial" not in top])


def test_one_dies_and_requests_go_on(two: Operator) -> None:
    until_ready_on(two, MODEL, "text-1", "text-2")
    with Clients(two, MODEL) as clients:
        clients.more(10)  # both replicas have loaded the model by now
        pid = two.stack.note["children"]["text-1"]
        os.kill(pid, signal.SIGKILL)
        two.until(lambda: not psutil.pid_exists(pid))
        answered = [len(replies) for replies in clients.of_each]
        clients.more(20)
        two.until(lambda: two.stack.note["children"]["text-1"] != pid)
        clients.more(10)
    lost = clients.failed
    assert all(reply.status in (503, CUT) for reply in lost), lost
    # Requests fail if they run on the killed replica or arrive in the milliseconds of its death: the kernel ends its
    # connections before it closes the socket, which accepts new ones until then. Requests that begin later never fail.
    # Two per client do not count as later: the running one, and one that had ended but was not in the list yet.
    later = [reply for replies, count in zip(clients.of_each, answered, strict=True) for reply in replies[count + 2 :]]
    assert all(reply.status == 200 for reply in later), lost
    until_ready_on(two, MODEL, "text-1", "text-2")


def test_a_replica_that_goes_away_stops_counting_within_seconds(two: Operator) -> None:
    until_ready_on(two, MODEL, "text-1", "text-2")
    pid = two.stack.note["children"]["text-2"]
    os.kill(pid, signal.SIGSTOP)  # the process exists but no longer responds
    try:
        two.until(lambda: set(replicas(two, MODEL)) == {"text-1"})
        assert MODEL in two.ready()
    finally:
        os.kill(pid, signal.SIGCONT)
    until_ready_on(two, MODEL, "text-1", "text-2")


def test_model_ready_on_one_of_two_replicas_causes_no_client_error(two: Operator) -> None:
    folder = two.root / "half"
    folder.mkdir()
    path = folder / WEIGHTS
    shutil.copy(demo_model(), path)
    two.taken("half", path, "gguf")
    until_ready_on(two, "half", "text-1", "text-2")
    two.verb("half", "load")
    two.until(lambda: replicas(two, "half") == {"text-1": "loaded", "text-2": "loaded"})
    # text-1 has the model in memory; text-2 restarts and does not find the file.
    path.unlink()
    os.kill(two.stack.note["children"]["text-2"], signal.SIGKILL)
    two.until(lambda: replicas(two, "half").get("text-2") == "failed")
    assert replicas(two, "half")["text-1"] in ("ready", "loaded")
    assert "half" in two.ready()
    with Clients(two, "half") as clients:
        clients.more(15)
    assert clients.failed == []
    two.delete("half")
