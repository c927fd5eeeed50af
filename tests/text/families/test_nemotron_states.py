"""Nemotron-H on torch: requests that continue from kept states answer as without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.text.families.family_checks import EXACT, prompt
from tests.text.families.parity import agree
from tests.text.families.published_configs import NEMOTRON_H
from tests.text.families.random_models import write_model
from tests.text.families.torch_session import LIMITS, TOKENS, TorchSession, alone, ends_of, load

if TYPE_CHECKING:
    from services.text.engine.runtimes.torch.engine import SafetensorsEngine


ROOM = replace(LIMITS, cached_cells=1024)
LONG = 190  # tokens: enough for a state before the prompt's end, read in chunks
SETTLED = 160  # LONG without its last 16 tokens, in whole blocks


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("states") / "hybrid", NEMOTRON_H)


@pytest.fixture(scope="module")
def engine(hybrid: Path) -> SafetensorsEngine:
    return load(hybrid)


def _check(session: TorchSession, request: int, tokens: list[int]) -> None:
    """Checks that the request answers as it does alone, without kept states."""
    generated, other = session.generated(request), alone(session.engine, tokens)
    assert generated.tokens == other.tokens
    agree(generated, other, EXACT, ends_of(session.engine))


def test_the_turns_of_a_chat_go_on_from_each_other(engine: SafetensorsEngine) -> None:
    session, talk = TorchSession(engine, ROOM), prompt(70)
    turns: dict[int, list[int]] = {}
    for turn in range(1, 5):
        turns[turn] = list(talk)
        session.ask(turn, talk)
        session.finish(turn)
        session.ask(50 + turn, prompt(30, seed=turn), client="b")  # takes the sequence id that computed the state
        session.finish(50 + turn)
        talk = [*talk, *session.generated(turn).tokens, *prompt(5 + turn, seed=turn)]
    assert [session.answers[turn].cached for turn in turns] == [0, *(len(turns[n]) + TOKENS - 1 for n in (1, 2, 3))]
    for turn, tokens in turns.items():
        _check(session, turn, tokens)


def test_states_taken_over_in_a_crowd_that_comes_and_goes(engine: SafetensorsEngine) -> None:
    session, common = TorchSession(engine, ROOM), prompt(LONG, seed=1)
    asked = {1: common, 2: prompt(40, seed=2), 3: common, 4: [*common[:SETTLED], *prompt(45, seed=3)]}
    for request, tokens in asked.items():
        session.ask(request, tokens)
    session.turn(2)
    session.ask(90, [*common, *prompt(40, seed=4)])
    session.turn(6)
    session.cancel(90)
    session.finish(1)
    turn = [*common, *session.generated(1).tokens, *prompt(9, seed=5)]
    asked |= {5: turn, 6: turn, 7: [*turn, *prompt(70, seed=6)]}
    for request in (5, 6, 7):
        session.ask(request, asked[request])
        session.turn()
    session.finish(*asked)
    assert session.together >= 4
    assert [session.answers[request].cached for request in asked] == [0, 0, SETTLED, SETTLED, *[LONG + TOKENS - 1] * 3]
    for request, tokens in asked.items():
        _check(session, request, tokens)
    assert session.counters is not None
    assert (session.counters.running, session.counters.active_cells) == (0, 0)
    assert session.counters.cached_cells > 0


@pytest.mark.parametrize("tokens", [7, 16])
def test_a_state_is_kept_where_no_chunk_would_end(engine: SafetensorsEngine, tokens: int) -> None:
    session = TorchSession(engine, replace(ROOM, batch_tokens=tokens, chunk_tokens=tokens))
    for request in (1, 2):
        session.ask(50, prompt(30), client="b")
        session.finish(50)
        session.ask(request, prompt(LONG))
        session.finish(request)
    assert [session.answers[request].cached for request in (1, 2)] == [0, SETTLED]
    for request in (1, 2):
        _check(session, request, prompt(LONG))


def test_a_cancelled_prompt_goes_on_when_it_comes_again(engine: SafetensorsEngine) -> None:
    session = TorchSession(engine, ROOM)
    session.ask(1, prompt(LONG))
    session.turn(2)
    session.cancel(1)
    session.ask(50, prompt(30), client="b")
    session.finish(50)
    session.ask(2, prompt(LONG))
    session.finish(2)
    assert session.answers[2].cached == 2 * LIMITS.batch_tokens
    _check(session, 2, prompt(LONG))


def test_kept_states_go_where_memory_is_short(hybrid: Path) -> None:
    session = TorchSession(load(hybrid, kv_tokens=512), replace(ROOM, cached_cells=400))
    asked = {request: prompt(LONG, seed=request) for request in range(4)}
    for request, tokens in asked.items():
        session.ask(request, tokens)
        session.turn(3)
    session.finish(*asked)
    for request, tokens in asked.items():
        _check(session, request, tokens)


def test_a_part_of_a_state_and_other_clients_take_over_nothing(engine: SafetensorsEngine) -> None:
    session = TorchSession(engine, ROOM)
    session.ask(1, prompt(80))
    session.finish(1)
    parts = {2: [*prompt(80), 9, 9], 3: [*prompt(80)[:79], 9, *session.generated(1).tokens, 9]}
    whole = [*prompt(80), *session.generated(1).tokens, 9]
    for request, tokens in parts.items():
        session.ask(request, tokens)
    session.ask(5, whole, client="b")
    session.finish(*parts, 5)
    assert [session.answers[request].cached for request in (*parts, 5)] == [0, 0, 0]
    session.ask(6, whole)
    session.finish(6)
    assert session.answers[6].cached == 80 + TOKENS - 1
    for request, tokens in (parts | {5: whole, 6: whole}).items():
        _check(session, request, tokens)


def test_a_state_is_copied_as_a_whole_or_not_at_all(engine: SafetensorsEngine) -> None:
    session = TorchSession(engine, ROOM)
    session.ask(1, prompt(40), max_tokens=1)
    session.finish(1)
    kept = engine.sequence_ids - 1
    for tokens in (16, 39, 41):
        with pytest.raises(ValueError, match="after 40 tokens cannot be shared in part"):
            engine.copy(kept, 0, tokens)
    with pytest.raises(ValueError, match="cannot be cut"):
        engine.drop(kept, 16)
    engine.copy(kept, 0, 40)


def test_switched_off_no_room_is_made_for_states(hybrid: Path) -> None:
    engine = load(hybrid, prefix_cache=False)
    assert not engine.reuses_states
    assert engine.sequence_ids == LIMITS.max_sequences
    session = TorchSession(engine, replace(ROOM, cached_cells=0))
    for request in (1, 2):
        session.ask(request, prompt(LONG))
        session.finish(request)
    assert session.answers[2].cached == 0
    assert session.counters is not None
    assert session.counters.cached_cells == 0
