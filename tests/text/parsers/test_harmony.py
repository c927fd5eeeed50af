"""gpt-oss: channels, recipients and malformed headers."""

from __future__ import annotations

from services.text.conversation import ReasoningDelta, TextDelta
from services.text.parsers.dialect import HARMONY
from tests.case import case
from tests.text.parsers.answers import call, read, splits

CALL = call(0, "now", '{"a": 1}')
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|>"
BODY = '<|message|>{"a": 1}<|call|>'


def test_a_recipient_may_stand_anywhere_in_the_header() -> None:
    for header in [
        "<|channel|>commentary to=functions.now <|constrain|>json",
        "<|channel|>commentary to=functions.now<|constrain|>json",
        "<|channel|>commentary to=functions.now json",
        "<|channel|>commentary to=functions.now",
        "<|channel|>commentary to=now ",
        "<|channel|>commentaryto=functions.now",
        "<|channel|>analysis to=functions.now code",
        " to=functions.now<|channel|>commentary json",
        "to=functions.now<|channel|>commentary <|constrain|>json",
        "<|start|>assistant to=functions.now<|channel|>commentary json",
        "<|constrain|>json to=functions.now",
    ]:
        with case(header=header):
            for pieces in splits(header + BODY, seed=1, count=10):
                assert read(HARMONY, pieces) == CALL


def test_channels_are_separated() -> None:
    text = (
        f"{THOUGHT}<|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json{BODY}"
    )
    for pieces in splits(text, seed=2, count=10):
        assert read(HARMONY, pieces) == [ReasoningDelta("Hm."), TextDelta("One moment."), *CALL]
    text = f"{THOUGHT}<|start|>assistant<|channel|>final <|constrain|>json<|message|>{{}} "
    for pieces in splits(text, seed=3, count=10):
        assert read(HARMONY, pieces) == [ReasoningDelta("Hm."), TextDelta("{} ")]


def test_malformed_headers_are_no_trouble() -> None:
    for text, content in [
        ("Hello.", "Hello."),
        ("Hello.<|end|>", "Hello."),
        ("<|message|>Hello.<|return|>", "Hello."),
        ("<|channel|><|message|>Hello.", "Hello."),
        ("<|channel|>finally<|message|>Hello.", "Hello."),
        ("<|channel|>final Hello.", "<|channel|>final Hello."),
        ("<|channel|>final<|end|>", "<|channel|>final"),
        ("<|constrain|>", "<|constrain|>"),
        ("<|channel|>final<|message|>He<|start|>assistant<|channel|>final<|message|>llo.", "Hello."),
        ("<|channel|>" * 5 + "<|message|>x", None),
        ("<|channel|>" + "x" * 200 + "<|message|>y", None),
        ("<|channel|>commentary to=browser.open<|message|>{}<|call|>", None),
    ]:
        with case(text=text, content=content):
            found = read(HARMONY, [text])
            for pieces in splits(text, seed=4, count=10):
                assert read(HARMONY, pieces) == found
            if content is not None:
                assert found == [TextDelta(content)]
            else:
                assert "".join(event.text for event in found if isinstance(event, TextDelta)) != ""


def test_a_call_of_a_tool_that_is_not_ours_is_content_to_the_letter() -> None:
    text = "<|channel|>commentary to=browser.open <|constrain|>json<|message|>{}<|call|>"
    assert read(HARMONY, [text]) == [TextDelta(text)]


def test_a_thought_that_the_prompt_began_goes_on() -> None:
    text = "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    assert read(HARMONY, list(text), reasoning_open=True) == [ReasoningDelta("Hm."), TextDelta("Yes.")]
