"""The preparation of requests in a worker: clients take turns, and cancelled requests go no further."""

from __future__ import annotations

import queue
from typing import Any

from services.text.engine.messages import Embed, Hold, Submit
from services.text.engine.preparation import Preparation, Preparing
from services.text.engine.sampling import SamplingParams
from services.worker.messages import Cancel


class Prepared:
    """A preparation whose turns the test takes. An input is one turn; a request with an empty input is refused."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.preparation = Preparation(self._prepare, self.inbox)
        self.turns: list[str] = []
        self.during: list[Any] = []  # messages that arrive during the next turn

    def _prepare(self, message: Embed | Submit) -> Preparing:
        inputs = message.inputs if isinstance(message, Embed) else [message.prompt]
        for at, content in enumerate(inputs):
            if at:
                yield
            self.turns.append(f"{message.client}{content}")
            while self.during:
                self.preparation.take(self.during.pop())
        return message.request if all(inputs) else None

    def embed(self, request: int, client: str, *inputs: str) -> None:
        self.preparation.take(Embed(request=request, client=client, inputs=list(inputs)))

    def run(self, turns: int) -> list[Any]:
        """Takes turns; returns what the loop got meanwhile."""
        for _ in range(turns):
            self.preparation.turn()
        return [self.inbox.get_nowait() for _ in range(self.inbox.qsize())]


def test_clients_take_turns_input_by_input() -> None:
    prepared = Prepared()
    prepared.embed(1, "a", "1", "2", "3")
    prepared.embed(2, "a", "4")
    prepared.embed(3, "b", "5")
    prepared.preparation.take(Submit(4, "c", "6", SamplingParams()))
    assert prepared.run(6) == [3, 4, 1, 2]
    assert prepared.turns == ["a1", "b5", "c6", "a2", "a3", "a4"]


def test_a_cancelled_request_goes_no_further() -> None:
    prepared = Prepared()
    for request, client in enumerate("aabc", 1):
        prepared.embed(request, client, "1", "2")
    prepared.during = [Cancel(1), Cancel(2), Cancel(3)]
    assert prepared.run(3) == [4]
    assert prepared.turns == ["a1", "c1", "c2"]
    assert not prepared.preparation._waiting


def test_the_loop_cancels_prepared_requests_and_refused_ones_never_arrive() -> None:
    prepared = Prepared()
    prepared.embed(1, "a", "")
    prepared.embed(2, "a", "1")
    assert prepared.run(2) == [2]
    prepared.preparation.take(Cancel(2))
    prepared.preparation.take(Hold(2, True))
    assert prepared.run(0) == [Cancel(2), Hold(2, True)]
