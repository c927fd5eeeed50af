"""The embedding loop: scheduling of inputs, and delivery of vectors."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from services.text.engine import embedding_loop
from services.text.engine.embedding_loop import EmbeddingInbox, EmbeddingJob, EmbeddingLoop, Tokens, Vectors, prepare
from services.text.engine.messages import MAX_EMBEDDED_TOKENS, Accepted, Embed, Encoded, EncoderReady
from services.worker.messages import Cancel, RequestRefused, Stop
from tests.case import case
from tests.minilm import unpack
from tests.text.engine.prepared import prepared

BATCH_TOKENS = 100


class CountingEncoder:
    """An encoder whose vector of an input is (first token, token count, 0, 0)."""

    ready = EncoderReady(context_tokens=1000, dimensions=4, vocabulary=10_000)

    def __init__(self, *, normalised: bool = False, batch_inputs: int = 50) -> None:
        self.normalised, self.batch_inputs = normalised, batch_inputs
        self.batches: list[list[int]] = []  # input lengths of each batch

    def tokenize(self, text: str) -> Tokens:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def encode(self, inputs: Sequence[Tokens]) -> Vectors:
        self.batches.append([len(tokens) for tokens in inputs])
        return np.array([[tokens[0], len(tokens), 0, 0] for tokens in inputs], np.float32)


class Session:
    """An embedding loop that tests step manually."""

    def __init__(self, encoder: CountingEncoder | None = None, queue_tokens: int = 0) -> None:
        self.encoder = encoder or CountingEncoder()
        self.inbox: EmbeddingInbox = queue.SimpleQueue()
        self.sent: list[Encoded] = []
        self.loop = EmbeddingLoop(self.encoder, BATCH_TOKENS, self.inbox, self.sent.append, queue_tokens)

    def ask(self, request: int, *lengths: int, client: str = "a", dimensions: int = 0) -> None:
        inputs = [np.full(length, request, np.int32) for length in lengths]
        self.inbox.put(EmbeddingJob(request, client, inputs, dimensions))

    def turn(self) -> list[tuple[int, int]]:
        """Runs one turn and returns the request and index of each vector."""
        before = len(self.sent)
        assert self.loop.turn()
        return [(one.request, one.index) for message in self.sent[before:] for one in message.vectors]


def test_one_request_comes_back_whole_and_each_vector_is_its_inputs() -> None:
    session = Session()
    session.ask(7, 3, 5, 4)
    assert sorted(session.turn()) == [(7, 0), (7, 1), (7, 2)]
    vectors = {one.index: unpack(one.vector).tolist() for one in session.sent[-1].vectors}
    assert vectors == {0: [7, 3, 0, 0], 1: [7, 5, 0, 0], 2: [7, 4, 0, 0]}
    assert session.sent[-1].counters.running == 0


def test_many_requests_share_a_batch() -> None:
    session = Session()
    for request in range(10):
        session.ask(request, 5)
    assert {request for request, _ in session.turn()} == set(range(10))
    assert session.encoder.batches == [[5] * 10]


def test_a_batch_has_a_bound_in_tokens_and_in_inputs() -> None:
    session = Session()
    session.ask(1, *[30] * 7)
    while session.sent[-1].counters.running if session.sent else True:
        session.turn()
    assert [sum(batch) for batch in session.encoder.batches] == [90, 90, 30]
    few = Session(CountingEncoder(batch_inputs=4))
    few.ask(1, *[1] * 9)
    for _ in range(3):
        few.turn()
    assert [len(batch) for batch in few.encoder.batches] == [4, 4, 1]


def test_an_input_that_is_longer_than_a_batch_is_computed_alone() -> None:
    session = Session()
    session.ask(1, 500, 10)
    assert session.turn() == [(1, 0)]
    assert session.turn() == [(1, 1)]


def test_a_large_request_does_not_hold_up_a_small_one() -> None:
    session = Session()
    session.ask(1, *[20] * 2048)
    for _ in range(3):
        session.turn()
    session.ask(2, 20)
    assert (2, 0) in session.turn(), "it is in the very next batch"


def test_clients_get_the_same_share_however_many_requests_they_have() -> None:
    session = Session()
    for request in range(8):
        session.ask(request, *[10] * 50, client="many")
    session.ask(100, *[10] * 50, client="one")
    for _ in range(4):
        done = session.turn()
        assert sum(request == 100 for request, _ in done) == len(done) // 2 == 5


def test_each_request_of_one_client_gets_its_share() -> None:
    session = Session()
    session.ask(1, *[10] * 50)
    session.ask(2, *[10] * 50)
    done = session.turn()
    assert sum(request == 1 for request, _ in done) == sum(request == 2 for request, _ in done) == 5


def test_a_long_input_does_not_wait_for_all_of_an_older_request() -> None:
    session = Session()
    session.ask(1, *[20] * 1000)
    session.turn()
    session.ask(2, 500)
    done = session.turn() + session.turn()
    assert (2, 0) in done


def test_a_request_is_not_starved_by_ever_newer_ones() -> None:
    session = Session()
    session.ask(1, *[90] * 5)
    done: list[tuple[int, int]] = []
    for turn in range(20):
        session.ask(10 + turn, 90)
        done += session.turn()
    assert {index for request, index in done if request == 1} == set(range(5))


def test_a_cancelled_request_is_not_computed_further() -> None:
    session = Session()
    session.ask(1, *[50] * 100)
    session.ask(2, *[50] * 2)
    session.turn()
    session.inbox.put(Cancel(1))
    session.inbox.put(Cancel(99))
    assert all(request == 2 for request, _ in session.turn())
    session.inbox.put(Stop())
    assert not session.loop.turn()
    assert session.sent[-1].counters.running == session.sent[-1].counters.waiting == 0


def test_counters_count_running_and_waiting_requests() -> None:
    session = Session()
    for request in range(5):
        session.ask(request, 60, 60)
    session.turn()
    counters = session.sent[-1].counters
    assert (counters.steps, counters.running, counters.waiting) == (1, 1, 4)


@pytest.mark.parametrize("normalised", [True, False])
def test_vectors_are_cut_and_then_brought_to_length_one_where_the_model_says_so(normalised: bool) -> None:
    session = Session(CountingEncoder(normalised=normalised))
    session.ask(3, 4, dimensions=2)
    session.ask(3, 4)
    session.turn()
    cut, whole = [unpack(one.vector) for one in session.sent[-1].vectors]
    expected = np.array([3, 4], np.float32) / (5 if normalised else 1)
    assert cut.tolist() == pytest.approx(expected.tolist())
    assert whole.tolist() == pytest.approx([*expected, 0, 0])
    nothing = Session(CountingEncoder(normalised=True))
    nothing.inbox.put(EmbeddingJob(1, "a", [np.zeros(1, np.int32)], 1))
    nothing.turn()
    assert np.isfinite(unpack(nothing.sent[-1].vectors[0].vector)).all()


def test_late_requests_end_before_the_next_batch() -> None:
    session = Session()
    now = time.monotonic()
    session.inbox.put(EmbeddingJob(1, "a", [np.ones(50, np.int32)] * 9, 0, deadline=now - 1))
    session.inbox.put(EmbeddingJob(2, "a", [np.ones(50, np.int32)], 0, deadline=now + 3600))
    session.loop.turn()
    refused, encoded = session.sent
    assert isinstance(refused, RequestRefused)
    assert (refused.request, refused.code) == (1, "TIMEOUT")
    assert [vector.request for vector in encoded.vectors] == [2]
    assert session.encoder.batches == [[50]]


def test_inputs_that_wait_are_bounded_by_their_tokens() -> None:
    session = Session(queue_tokens=200)
    session.ask(1, *[50] * 9)  # an empty queue admits a request of any size
    session.ask(2, 50)
    session.loop.turn()
    refused = session.sent[0]
    assert isinstance(refused, RequestRefused)
    assert (refused.request, refused.code) == (2, "OVERLOADED")
    assert "ALLM_QUEUE_TOKENS" in refused.message


def test_the_start_of_a_request_is_reported_once() -> None:
    session = Session()
    session.ask(1, *[50] * 5)
    before = time.monotonic()
    for _ in range(3):
        session.turn()
    (phase,) = [phase for message in session.sent for phase in message.phases]
    assert (phase.request, phase.name) == (1, "embed")
    assert before <= phase.at <= time.monotonic()
    assert session.sent[0].phases, "with its first vectors, not after them"


def asked(inputs: list[str | list[int]], param: str = "input[]") -> tuple[Any, Any]:
    """Returns the request for the loop and the message for the caller."""
    sent: list[object] = []
    embed = Embed(request=5, client="a", inputs=inputs, dimensions=3, param=param)
    arrival = prepared(prepare(CountingEncoder(), embed, sent.append))
    (answer,) = sent
    return arrival, answer


def test_texts_and_tokens_are_taken_side_by_side() -> None:
    arrival, accepted = asked(["abc", [1, 2], "é"])
    assert [tokens.tolist() for tokens in arrival.inputs] == [[97, 98, 99], [1, 2], [195, 169]]
    assert (arrival.request, arrival.client, arrival.dimensions) == (5, "a", 3)
    assert accepted == Accepted(5, 7)


def test_mismatch_is_refused_with_its_position() -> None:
    for inputs, param, code, named, words in [
        (["a", "x" * 1001], "input[]", "CONTEXT_LENGTH_EXCEEDED", "input[1]", ["1001", "1000"]),
        (["x" * 1001], "input", "CONTEXT_LENGTH_EXCEEDED", "input", ["1001", "1000"]),
        ([[1] * 2000], "inputs[]", "CONTEXT_LENGTH_EXCEEDED", "inputs[0]", ["2000", "1000"]),
        ([[1], [5, 10_000]], "input[]", "INVALID_REQUEST", "input[1]", ["token 10000", "0 to 9999"]),
        ([[-1]], "input[]", "INVALID_REQUEST", "input[0]", ["token -1"]),
        (["a", ""], "input[]", "INVALID_REQUEST", "input[1]", ["no tokens"]),
        (["a", "x" * 65_537], "input[]", "CONTEXT_LENGTH_EXCEEDED", "input[1]", ["65537 bytes", "1000 tokens"]),
        (["x" * 1000] * 301, "input[]", "INVALID_REQUEST", "input", [str(MAX_EMBEDDED_TOKENS)]),
    ]:
        with case(inputs=inputs, param=param, code=code, named=named, words=words):
            arrival, refused = asked(inputs, param)
            assert arrival is None
            assert isinstance(refused, RequestRefused)
            assert (refused.request, refused.code, refused.param) == (5, code, named)
            for word in (f"'{named}'", *words):
                assert word in refused.message


class FramedEncoder(CountingEncoder):
    """One with special tokens around a text: 1 and 2."""

    def tokenize(self, text: str) -> Tokens:
        return np.concatenate(([1], super().tokenize(text), [2])).astype(np.int32)


def test_texts_are_cut_on_request_and_special_tokens_stay() -> None:
    for encoder, ends in ((CountingEncoder(), (97, 97)), (FramedEncoder(), (1, 2))):
        with case(encoder=type(encoder).__name__):
            sent: list[object] = []
            inputs: list[str | list[int]] = ["a" * 1001, "a" * 300_000, "ab", [5]]
            embed = Embed(request=5, client="a", inputs=inputs, truncate=True)
            arrival: Any = prepared(prepare(encoder, embed, sent.append))
            assert sent == [Accepted(5, sum(map(len, arrival.inputs)))]
            assert [len(tokens) for tokens in arrival.inputs[:2]] == [1000, 1000]
            assert {(int(tokens[0]), int(tokens[-1])) for tokens in arrival.inputs[:2]} == {ends}
            assert arrival.inputs[2].tolist() == encoder.tokenize("ab").tolist()
            embed = Embed(request=6, client="a", inputs=[[1] * 1001], truncate=True)
            assert prepared(prepare(encoder, embed, sent.append)) is None, "tokens are the caller's own"


def test_exactly_as_much_as_is_allowed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_loop, "MAX_EMBEDDED_TOKENS", 2000)
    assert asked(["x" * 1000] * 2)[1] == Accepted(5, 2000)
