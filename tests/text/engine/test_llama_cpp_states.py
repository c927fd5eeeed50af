"""Nemotron-H on llama.cpp, with small random weights: requests that reuse kept states answer as without them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from services.text.engine.loop import BatchLoop
from services.text.engine.messages import TokenLogprob
from services.text.engine.request_loop import BatchLimits
from services.text.engine.runtimes.llama_cpp import LlamaEngine
from services.text.engine.sampling import SamplingParams
from services.text.engine.sequence import Sequence
from services.worker.messages import Cancel
from tests.text.engine.session import Session, options
from tests.verification.random_gguf import write_nemotron_h

ANSWER = 16  # tokens
LONG, SETTLED = 190, 160  # tokens of a prompt, and of the part that the state before its end covers
CLOSE = 0.05  # nats of tolerance for one token in batches of different shapes, with keys of 16 bits


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nemotron_h(tmp_path_factory.mktemp("hybrid") / "model")


@pytest.fixture(scope="module")
def engine(hybrid: Path) -> LlamaEngine:
    # KV cells for all contexts; other models would get the stream layout, which copies cells.
    return LlamaEngine(options(hybrid, threads=1, context_tokens=512, kv_tokens=8 * 512), lambda _: None)


class StateSession(Session):
    """Token requests, with steps small enough to split prompts into chunks."""

    def __init__(self, engine: LlamaEngine, cached: int = 2048) -> None:
        super().__init__(engine, cached)
        self.loop = BatchLoop(engine, BatchLimits(8, 64, 24, cached), self.inbox, self.take)

    def send(self, request: int, tokens: list[int], client: str = "a") -> None:
        params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
        self.inbox.put(Sequence(request, client, list(tokens), params, None, logprobs=2, special=True))

    def turn(self, times: int) -> None:
        for _ in range(times):
            self.loop.turn()

    def reported(self, request: int) -> list[TokenLogprob]:
        return [step for piece in self.pieces[request] for step in piece.logprobs or ()]

    def spoken(self, request: int) -> list[int]:
        """Returns the answer's tokens."""
        ids = {self.engine._text_of(token, special=True): token for token in range(self.engine.ready.vocabulary)}
        return [ids[step.piece] for step in self.reported(request)]

    def check(self, asked: dict[int, list[int]]) -> None:
        """Checks that each answer equals that of a lone request without kept states; ends the session."""
        for request, tokens in asked.items():
            alone = StateSession(self.engine, cached=0)
            alone.send(request, tokens)
            alone.finish(1)
            assert alone.ended[request].cached_tokens == 0
            assert len(self.reported(request)) == ANSWER
            for ours, theirs in zip(self.reported(request), alone.reported(request), strict=True):
                if ours.piece != theirs.piece:
                    assert theirs.top[0][1] - theirs.top[1][1] < CLOSE, request
                    break
                assert abs(ours.logprob - theirs.logprob) < CLOSE, request


def prompt(length: int, seed: int = 0) -> list[int]:
    chosen = random.Random(seed)  # noqa: S311
    return [chosen.randrange(10, 280) for _ in range(length)]


def test_the_turns_of_a_chat_go_on_from_each_other(engine: LlamaEngine) -> None:
    session, talk = StateSession(engine), prompt(70)
    turns: dict[int, list[int]] = {}
    for turn in range(1, 5):
        turns[turn] = list(talk)
        session.send(turn, talk)
        session.finish(2 * turn - 1)
        session.send(50 + turn, prompt(30, seed=turn), client="b")  # takes the sequence id that computed the state
        session.finish(2 * turn)
        talk = [*talk, *session.spoken(turn), *prompt(9, seed=turn)]
    ends = [len(turns[turn]) + ANSWER - 1 for turn in (1, 2, 3)]
    assert [session.ended[turn].cached_tokens for turn in turns] == [0, *ends]
    session.check(turns)


def test_states_taken_over_in_a_crowd_that_comes_and_goes(engine: LlamaEngine) -> None:
    session, common = StateSession(engine), prompt(LONG, seed=1)
    asked = {1: common, 2: prompt(40, seed=2), 3: common, 4: [*common[:SETTLED], *prompt(45, seed=3)]}
    for request, tokens in asked.items():
        session.send(request, tokens)
    session.turn(2)
    session.send(90, [*common, *prompt(40, seed=4)])
    session.turn(6)
    session.inbox.put(Cancel(90))
    while 1 not in session.ended:
        session.turn(1)
    turn = [*common, *session.spoken(1), *prompt(9, seed=5)]
    asked |= {5: turn, 6: turn}
    for request in (5, 6):
        session.send(request, asked[request])
        session.turn(1)
    session.finish(len(asked))
    assert [session.ended[request].cached_tokens for request in (3, 4, 5, 6)] == [SETTLED] * 2 + [LONG + ANSWER - 1] * 2
    assert session.counters.active_cells == 0
    assert session.counters.cached_cells > 0
    session.check(asked)


def test_a_part_of_a_state_and_other_clients_take_over_nothing(engine: LlamaEngine) -> None:
    session = StateSession(engine)
    session.send(1, prompt(80))
    session.finish(1)
    whole = [*prompt(80), *session.spoken(1), 99]
    asked = {2: [*prompt(79), 99, *whole[80:]], 3: whole}
    session.send(2, asked[2])
    session.send(3, whole, client="b")
    session.finish(3)
    assert [session.ended[request].cached_tokens for request in asked] == [0, 0]
    session.check(asked)


def test_switched_off_no_room_is_made_for_states(hybrid: Path) -> None:
    engine = LlamaEngine(options(hybrid, threads=1, prefix_cache=False), lambda _: None)
    assert not engine.reuses_states
    assert engine.sequence_ids == 8
    session = StateSession(engine, cached=0)
    for request in (1, 2):
        session.send(request, prompt(LONG))
        session.finish(request)
    assert session.ended[2].cached_tokens == session.counters.cached_cells == 0
