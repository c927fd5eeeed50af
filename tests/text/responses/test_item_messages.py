"""Messages of the items of responses: order, merging, pictures, and the turns that are dropped first."""

from __future__ import annotations

import random

import pytest

from services.errors import InvalidRequest
from services.text.conversation import Message, Picture, ToolCall
from services.text.responses.item_messages import messages_of, shortened
from services.text.responses.response import (
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    MessageItem,
    Part,
    ReasoningItem,
)
from tests.case import case
from tests.text.responses.scripted_chat import said


def call(call_id: str, name: str = "f") -> FunctionCallItem:
    return FunctionCallItem(id=f"fc_{call_id}", call_id=call_id, name=name, arguments="{}")


def output(call_id: str, text: str = "ok") -> FunctionOutputItem:
    return FunctionOutputItem(id=f"fco_{call_id}", call_id=call_id, output=text)


def thought(text: str, *summary: str) -> ReasoningItem:
    return ReasoningItem(id="rs_1", text=text, summary=summary)


def test_input_becomes_messages() -> None:
    items = (said("a"), said("b", "assistant"), said("c", "developer"))
    assert messages_of(items, None) == (
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="developer", content="c"),
    )


def test_parts_are_joined_and_a_refusal_counts_as_text() -> None:
    item = MessageItem(id="m", role="assistant", content=(Part(text="a"), Part(text="b", refusal=True)))
    assert messages_of((item,), None)[0].content == "ab"


def test_pictures_keep_their_place_and_have_names_only_in_the_request() -> None:
    pictured = Part(text="", image_url="/v1/images/files/a.png", detail="low")
    content = (Part(text="ab"), pictured, Part(text="c"), pictured)
    stored = MessageItem(id="m", role="user", content=content)
    asked = FunctionOutputItem(id="o", call_id="c1", output="", parts=(pictured, Part(text="x")))
    first, _, result = messages_of((stored, call("c1"), asked), None, 2)
    place = {"url": "/v1/images/files/a.png", "detail": "low"}
    assert first.content == "abc"
    assert first.pictures == tuple(
        Picture(at=at, param=f"input.content[{part}]", **place) for at, part in ((2, 1), (3, 3))
    )
    assert result.content == "x"
    assert result.pictures == (Picture(at=0, param="input[0].output[0]", **place),)


def test_instructions_come_first_and_share_a_message_with_what_else_guides() -> None:
    assert messages_of((said("u"),), "be brief") == (
        Message(role="system", content="be brief"),
        Message(role="user", content="u"),
    )
    assert messages_of((said("d", "developer"), said("u"), said("s", "system")), "i") == (
        Message(role="system", content="i\n\nd"),
        Message(role="user", content="u"),
        Message(role="system", content="s"),
    )


def test_thoughts_words_and_calls_of_one_turn_are_one_message() -> None:
    items = (said("u"), thought("hm"), said("let me see", "assistant"), call("c1"), call("c2", "g"), output("c1"))
    assert messages_of((*items, output("c2", "no")), None)[1:] == (
        Message(
            role="assistant",
            content="let me see",
            reasoning="hm",
            tool_calls=(ToolCall(id="c1", name="f", arguments="{}"), ToolCall(id="c2", name="g", arguments="{}")),
        ),
        Message(role="tool", content="ok", name="f", tool_call_id="c1"),
        Message(role="tool", content="no", name="g", tool_call_id="c2"),
    )


def test_two_answers_in_a_row_stay_two() -> None:
    messages = messages_of((said("a", "assistant"), said("b", "assistant")), None)
    assert [message.content for message in messages] == ["a", "b"]


def test_a_thought_alone_is_no_message_and_a_summary_stands_for_a_thought() -> None:
    assert messages_of((said("u"), thought("hm")), None) == (Message(role="user", content="u"),)
    (message,) = messages_of((thought("", "one", "two"), said("a", "assistant")), None)
    assert message.reasoning == "one\ntwo"


def test_an_output_without_its_call_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="c9") as caught:
        messages_of((said("u"), output("c9")), None)
    assert caught.value.param == "input"


def test_the_oldest_turns_go_first_in_doubling_steps() -> None:
    messages = messages_of(tuple(item for n in range(9) for item in (said(f"u{n}"), said(f"a{n}", "assistant"))), "s")
    first = [shorter[1].content for shorter in shortened(messages)]
    assert first == ["u1", "u2", "u4", "u8"]
    assert all(shorter[0].role == "system" for shorter in shortened(messages))


def test_the_last_turn_stays_whole() -> None:
    assert list(shortened(messages_of((said("u"), said("a", "assistant"), call("c"), output("c")), "s"))) == []


def test_any_conversation_keeps_its_order_and_its_calls_before_their_outputs() -> None:
    for seed in range(200):
        with case(seed=seed):
            chance = random.Random(seed)  # noqa: S311 (no secret)
            items: list[Item] = []
            texts: list[str] = []
            for number in range(chance.randint(1, 30)):
                kind = chance.choice(["user", "assistant", "call", "thought", "output"])
                called = [item.call_id for item in items if isinstance(item, FunctionCallItem)]
                if kind in ("user", "assistant"):
                    items.append(said(f"t{number}", kind))
                    texts.append(f"t{number}")
                elif kind == "thought":
                    items.append(thought(f"t{number}"))
                elif kind == "call" or not called:
                    items.append(call(f"c{number}"))
                else:
                    items.append(output(chance.choice(called), f"t{number}"))
                    texts.append(f"t{number}")
            messages = messages_of(items, None)
            assert [message.content for message in messages if message.content] == texts
            calls = [one.id for message in messages for one in message.tool_calls]
            assert calls == [item.call_id for item in items if isinstance(item, FunctionCallItem)]
            for at, message in enumerate(messages):
                if message.role == "tool":
                    assert message.tool_call_id in [one.id for earlier in messages[:at] for one in earlier.tool_calls]
            for shorter in shortened(messages):
                assert messages[-len(shorter) :] == shorter
                assert shorter[0].role == "user"
