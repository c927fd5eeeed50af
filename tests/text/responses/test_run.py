"""Conversion of an answer's events into output items."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from services.text.conversation import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Finished,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from services.text.engine.messages import TokenLogprob
from services.text.responses.response import (
    Delta,
    DeltaDone,
    Event,
    FunctionCallItem,
    Item,
    ItemAdded,
    ItemDone,
    MessageItem,
    PartAdded,
    PartDone,
    ReasoningItem,
    Response,
    ResponseSettings,
)
from services.text.responses.run import Output, Run
from services.text.running_answer import AnswerContent, Completion
from tests.case import case

STOP, LENGTH = Finished("stop"), Finished("length")


def output_of(*events: AnswerEvent) -> tuple[list[Event], list[Item]]:
    output = Output()
    found = [event for one in events for event in output.take(one)]
    return found, output.items


def shape(events: Sequence[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def text_of(item: Item) -> str:
    if isinstance(item, MessageItem):
        return "".join(part.text for part in item.content)
    if isinstance(item, ReasoningItem):
        return item.text
    assert isinstance(item, FunctionCallItem)
    return item.arguments


def test_text_is_a_message() -> None:
    events, items = output_of(TextDelta("Hel"), TextDelta("lo"), STOP)
    assert shape(events) == ["ItemAdded", "PartAdded", "Delta", "Delta", "DeltaDone", "PartDone", "ItemDone"]
    (item,) = items
    assert isinstance(item, MessageItem)
    assert (text_of(item), item.role, item.status) == ("Hello", "assistant", "completed")


def test_thoughts_come_before_the_message() -> None:
    _, items = output_of(ReasoningDelta("hm"), TextDelta("\n\n"), TextDelta("yes"), STOP)
    assert [(type(item), text_of(item)) for item in items] == [(ReasoningItem, "hm"), (MessageItem, "\n\nyes")]


def test_calls_are_items_of_their_own() -> None:
    events, items = output_of(
        CallStarted(0, "f", "call_1"),
        CallArguments(0, '{"a"'),
        CallArguments(0, ":1}"),
        CallStarted(1, "g", "call_2"),
        STOP,
    )
    assert shape(events)[:5] == ["ItemAdded", "Delta", "Delta", "DeltaDone", "ItemDone"]
    first, second = items
    assert isinstance(first, FunctionCallItem)
    assert isinstance(second, FunctionCallItem)
    assert (first.call_id, first.name, first.arguments) == ("call_1", "f", '{"a":1}')
    assert second.call_id == "call_2"
    assert first.id.startswith("fc_")


def test_white_space_around_calls_is_no_message() -> None:
    _, items = output_of(
        TextDelta(" \n"), CallStarted(0, "f", "c"), CallArguments(0, "{}"), TextDelta("\n"), Finished("tool_calls")
    )
    assert [type(item) for item in items] == [FunctionCallItem]


def test_logprobs_go_with_their_text_and_those_of_calls_nowhere() -> None:
    token = TokenLogprob(b"a", -0.5, [])
    events, (item,) = output_of(TextDelta("a", (token,)), STOP)
    assert [event.logprobs for event in events if isinstance(event, Delta)] == [(token,)]
    assert isinstance(item, MessageItem)
    assert item.content[0].logprobs == (token,)
    _, items = output_of(
        CallStarted(0, "f", "c"), CallArguments(0, "{}"), TextDelta("", (token,)), Finished("tool_calls")
    )
    assert [type(item) for item in items] == [FunctionCallItem]


def test_an_answer_without_anything_is_an_empty_message() -> None:
    events, (item,) = output_of(STOP)
    assert text_of(item) == ""
    assert shape(events) == ["ItemAdded", "PartAdded", "DeltaDone", "PartDone", "ItemDone"]


def test_truncated_answer_is_incomplete() -> None:
    _, items = output_of(ReasoningDelta("hm"), TextDelta("ye"), LENGTH)
    assert [item.status for item in items] == ["completed", "incomplete"]
    _, items = output_of(ReasoningDelta("hm"), LENGTH)
    assert [(type(item), item.status) for item in items] == [(ReasoningItem, "incomplete")]


def answer(chance: random.Random) -> list[AnswerEvent]:
    events: list[AnswerEvent] = []
    calls = 0
    for _ in range(chance.randint(0, 12)):
        kind = chance.choice(["text", "space", "reasoning", "call"])
        if kind == "text":
            events.append(TextDelta(chance.choice(["a", " b", "c\n"])))
        elif kind == "space":
            events.append(TextDelta(chance.choice([" ", "\n", ""])))
        elif kind == "reasoning":
            events.append(ReasoningDelta(chance.choice(["x", "y "])))
        else:
            events.append(CallStarted(calls, "f", f"call_{calls}"))
            events += [CallArguments(calls, piece) for piece in ("{", "}")]
            calls += 1
    return [*events, chance.choice([STOP, LENGTH])]


def test_the_events_of_any_answer_agree_with_its_items() -> None:
    for seed in range(300):
        with case(seed=seed):
            asked = answer(random.Random(seed))  # noqa: S311 (no secret)
            events, items = output_of(*asked)
            assert [event.item for event in events if isinstance(event, ItemDone)] == items
            for index, item in enumerate(items):
                own = [event for event in events if getattr(event, "index", None) == index]
                added, *middle, done = own
                assert isinstance(added, ItemAdded)
                assert isinstance(done, ItemDone)
                assert added.item.id == done.item.id == item.id
                deltas = [event for event in middle if isinstance(event, Delta)]
                (whole,) = [event for event in middle if isinstance(event, DeltaDone)]
                assert "".join(event.text for event in deltas) == whole.text == text_of(item)
                assert {event.item for event in deltas} <= {item.id}
                parts = [type(event) for event in middle if isinstance(event, PartAdded | PartDone)]
                assert parts == ([] if isinstance(item, FunctionCallItem) else [PartAdded, PartDone])
            assert len({item.id for item in items}) == len(items)
            # Only white space may be left out.
            spoken = "".join(event.text for event in asked if isinstance(event, TextDelta))
            kept = "".join(text_of(item) for item in items if isinstance(item, MessageItem))
            assert "".join(kept.split()) == "".join(spoken.split())
            thoughts = "".join(event.text for event in asked if isinstance(event, ReasoningDelta))
            assert "".join(text_of(item) for item in items if isinstance(item, ReasoningItem)) == thoughts


class Steps:
    """Stands for a completion whose events come in these steps; an empty step is a silence."""

    ignored = ()
    usage = Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=2)
    choices = (SimpleNamespace(content=AnswerContent(finish="stop")),)

    def __init__(self, *steps: Sequence[AnswerEvent]) -> None:
        self._left = list(steps)

    @property
    def finished(self) -> bool:
        return not self._left

    async def ready_soon(self) -> list[tuple[int, Any]]:
        return [(0, event) for event in self._left.pop(0)]


async def test_a_batch_is_empty_only_after_a_silence() -> None:
    steps = Steps([TextDelta("\n")], [], [TextDelta("Paris")], [STOP])
    response = Response(id="resp_1", model="m", created=1.0, settings=ResponseSettings())
    run = Run(response, cast("Completion", steps), [], None)
    assert [shape(batch) for batch in [batch async for batch in run.events()]] == [
        ["Progress", "Progress"],
        [],  # the white space before it is held back
        ["ItemAdded", "PartAdded", "Delta", "Delta"],
        ["DeltaDone", "PartDone", "ItemDone", "Progress"],
    ]
    assert run.response.status == "completed"
