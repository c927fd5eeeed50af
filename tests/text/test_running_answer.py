"""Answers read incrementally: text, reasoning, calls, logprobs, and their totals."""

from __future__ import annotations

from typing import Any

import pytest

from services.errors import Internal
from services.text.conversation import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    Usage,
)
from services.text.engine.messages import Piece, TokenLogprob
from services.text.loaded import Answer
from services.text.parsers.dialect import choose
from services.text.parsers.tool_grammar import ToolShape
from services.text.running_answer import Choice, Completion
from tests.case import case

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
FIRST, SECOND = TokenLogprob(b"Hi", -0.1, []), TokenLogprob(b"!", -0.2, [])


def piece(text: str, tokens: int, finish=None, logprobs=None) -> Piece:
    return Piece(1, text, finish, tokens, 5, logprobs)


def choice(*pieces: Piece, reasoning_open: bool = False) -> Choice:
    answer = Answer()
    answer.prompt_tokens = 7
    for part in pieces:
        answer.push(part)
    return Choice(answer, choose("", "llama").parser([ToolShape("f", None)], reasoning_open=reasoning_open))


async def all_events(running: Choice) -> list[AnswerEvent]:
    events: list[AnswerEvent] = []
    while not running.content.finish:
        events += await running.ready()
    return events


async def test_text_is_streamed_as_it_comes() -> None:
    running = choice(piece("Hel", 1), piece("lo", 2), piece("", 3, "stop"))
    assert await all_events(running) == [TextDelta("Hel"), TextDelta("lo"), Finished("stop")]
    assert (running.content.text, running.content.calls, running.content.finish) == ("Hello", [], "stop")
    assert running.usage == Usage(prompt_tokens=7, cached_tokens=5, completion_tokens=3)


async def test_the_pictures_of_a_request_are_held_until_every_prompt_is_computed() -> None:
    calls = []

    async def begun() -> None:
        calls.append(1)

    running = [choice(piece("a", 1), piece("", 2, "stop")), choice()]
    late = running[1]._answer
    completion = Completion("m", running, begun=begun)
    await completion.ready()
    assert not calls
    late.push(piece("b", 1))
    late.push(piece("", 2, "stop"))
    await completion.whole()
    assert calls == [1]


async def test_a_scored_prompt_comes_before_the_first_token_and_may_be_all() -> None:
    answer = Answer()
    answer.prompt_tokens = 2
    answer.push(Piece(1, "", None, 0, 0, prompt_logprobs=[FIRST]))
    answer.push(Piece(1, "", None, 0, 0, prompt_logprobs=[SECOND]))
    assert answer.first_token_seconds is None
    running, alone = Choice(answer, None), Choice(answer, None, prompt_only=True)
    assert await running.ready() == []
    assert running.content.prompt_logprobs == [FIRST, SECOND]
    for reader in (running, alone):
        answer.push(Piece(1, "Hi", "stop", 1, 0, [FIRST]))
        await reader.ready()
    assert (running.content.text, running.content.logprobs, running.usage.completion_tokens) == ("Hi", [FIRST], 1)
    assert (alone.content.text, alone.content.logprobs, alone.usage.completion_tokens) == ("", [], 0)
    assert (running.content.finish, alone.content.finish) == ("stop", "length")
    assert answer.first_token_seconds is not None


async def test_a_call_has_an_id_and_ends_the_answer_as_a_call() -> None:
    running = choice(piece(CALL[:30], 1), piece(CALL[30:], 2), piece("", 3, "stop"))
    begun, *deltas, finished = await all_events(running)
    assert isinstance(begun, CallStarted)
    assert (begun.index, begun.name) == (0, "f")
    assert begun.id.startswith("call_")
    assert all(isinstance(delta, CallArguments) for delta in deltas)
    assert "".join(delta.text for delta in deltas) == '{"a": 1}'
    assert finished == Finished("tool_calls")
    assert running.content.calls == [ToolCall(id=begun.id, name="f", arguments='{"a": 1}')]


async def test_without_parallel_calls_only_the_first_one_counts() -> None:
    answer = Answer()
    for part in (piece(CALL, 2), piece(CALL.replace("1", "2"), 4), piece("", 5, "stop")):
        answer.push(part)
    parser = choose("", "llama").parser([ToolShape("f", None)], reasoning_open=False)
    running = Choice(answer, parser, parallel=False)
    events = await all_events(running)
    assert [event.index for event in events if isinstance(event, CallStarted)] == [0]
    assert [call.arguments for call in running.content.calls] == ['{"a": 1}']
    assert events[-1] == Finished("tool_calls")


async def test_a_call_that_was_cut_off_ended_by_length() -> None:
    running = choice(piece(CALL[:45], 1, "length"))
    events = await all_events(running)
    assert events[-1] == Finished("length")
    assert running.content.finish == "length"


async def test_thoughts_are_separated_and_counted() -> None:
    running = choice(piece("hm, ", 2), piece("well</think>", 4), piece("Yes", 5, "stop"), reasoning_open=True)
    events = await all_events(running)
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "hm, well"
    assert "".join(event.text for event in events if isinstance(event, TextDelta)).strip() == "Yes"
    assert running.usage.reasoning_tokens == 4
    assert running.content.reasoning == "hm, well"


async def test_logprobs_come_with_their_text_and_none_is_lost() -> None:
    running = choice(piece("Hi", 1, logprobs=[FIRST]), piece("", 2, "stop", logprobs=[SECOND]))
    assert await all_events(running) == [TextDelta("Hi", (FIRST,)), TextDelta("", (SECOND,)), Finished("stop")]
    assert running.content.logprobs == [FIRST, SECOND]


async def test_an_error_ends_every_choice() -> None:
    running = choice(piece("Hi", 1))
    running._answer.fail(Internal("worker died"))
    assert await running.ready() == [TextDelta("Hi")]
    with pytest.raises(Internal, match="worker died"):
        await running.ready()


async def test_choices_are_merged_as_they_come() -> None:
    first, second = choice(), choice()
    completion = Completion("m", [first, second])
    second._answer.push(piece("b", 1))
    assert await completion.ready() == [(1, TextDelta("b"))]
    first._answer.push(piece("a", 1, "stop"))
    assert await completion.ready() == [(0, TextDelta("a")), (0, Finished("stop"))]
    assert not completion.finished
    second._answer.push(piece("c", 2, "length"))
    assert await completion.ready() == [(1, TextDelta("c")), (1, Finished("length"))]
    assert completion.finished
    assert await completion.ready() == []
    assert completion.usage == Usage(prompt_tokens=7, cached_tokens=5, completion_tokens=3)
    await completion.close()


async def test_ended_reader_leaves_no_task() -> None:
    completion = Completion("m", [choice(), choice(piece("b", 1))])
    await completion.ready()
    await completion.close()
    assert all(task.done() for task in completion._pending)


async def test_a_failing_choice_fails_the_completion() -> None:
    first, second = choice(), choice()
    completion = Completion("m", [first, second])
    second._answer.fail(Internal("worker died"))
    with pytest.raises(Internal):
        await completion.ready()
    await completion.close()


class Counted:
    """The token counts of a choice."""

    def __init__(self, prompt: int, generated: int) -> None:
        self.computed = (prompt, generated)
        self.usage = Usage(prompt_tokens=prompt, cached_tokens=prompt // 2, completion_tokens=generated)


def test_each_prompt_counts_once_and_every_token_generated() -> None:
    for choices, prompts, tokens in [
        ([(7, 5)], 1, 12),
        ([(0, 0)], 1, 0),
        ([(7, 5), (7, 3), (7, 0)], 1, 15),
        ([(7, 5), (0, 0)], 1, 12),  # the second choice has not begun
        ([(7, 5), (9, 1)], 2, 22),
        ([(7, 5), (7, 1), (9, 1), (0, 0)], 2, 23),
    ]:
        with case(choices=choices, prompts=prompts, tokens=tokens):
            made: Any = [Counted(*each) for each in choices]
            assert Completion("m", made, prompts=prompts).computed == tokens


@pytest.mark.parametrize(
    ("choices", "prompts", "usage"),
    [
        ([(7, 5)], 1, (7, 3, 5)),
        ([(7, 5), (7, 3)], 1, (7, 3, 8)),
        ([(7, 5), (10, 1)], 2, (17, 8, 6)),
        ([(7, 5), (7, 1), (10, 1), (10, 2)], 2, (17, 8, 9)),
    ],
)
def test_callers_see_the_usage_of_all_prompts(
    choices: list[tuple[int, int]], prompts: int, usage: tuple[int, int, int]
) -> None:
    made: Any = [Counted(*each) for each in choices]
    reported = Completion("m", made, prompts=prompts).usage
    assert (reported.prompt_tokens, reported.cached_tokens, reported.completion_tokens) == usage
