"""Server-sent events, byte for byte."""

from __future__ import annotations

from services.errors import Internal, InvalidRequest, Overloaded
from services.rest.openai import sse


def test_an_event_is_one_data_line_and_an_empty_one() -> None:
    assert sse.data({"a": None, "b": [1, True]}) == b'data: {"a":null,"b":[1,true]}\n\n'


def test_an_event_may_have_a_name() -> None:
    assert sse.event("response.created", {"a": 1}) == b'event: response.created\ndata: {"a":1}\n\n'


def test_line_breaks_inside_a_value_never_break_the_event() -> None:
    event = sse.data({"content": "a\nb\r\nc\rd"})
    assert event == b'data: {"content":"a\\nb\\r\\nc\\rd"}\n\n'
    assert event.count(b"\n") == 2


def test_text_stays_utf8() -> None:
    assert sse.data("größer 😀") == 'data: "größer 😀"\n\n'.encode()


def test_the_end_of_a_stream_is_openais() -> None:
    assert sse.DONE == b"data: [DONE]\n\n"


def test_events_that_are_ready_together_share_one_message() -> None:
    message = sse.body([sse.data(1), sse.data(2), sse.DONE])
    assert message.content_type == "text/event-stream; charset=utf-8"
    assert message.data == b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"


def test_an_error_in_a_stream_is_openais_object() -> None:
    message = sse.error(InvalidRequest("no such thing", param="stop"))
    assert message.data == (
        b'data: {"error":{"message":"no such thing","type":"invalid_request_error","param":"stop","code":null}}\n\n'
    )
    assert b'"param":null,"code":"internal"' in sse.error(Internal("x")).data
    assert b'"type":"rate_limit_error"' in sse.error(Overloaded("x")).data


def test_padded_events_tell_only_the_blocks_of_their_texts() -> None:
    sizes, paddings = set(), set()
    for length in range(sse.BLOCK):
        value = sse.obfuscated({"content": "x" * length})
        sizes.add(len(sse.data(value)))
        paddings.add(value["obfuscation"])
    assert max(sizes) - min(sizes) == sse.BLOCK
    assert len(sizes) == 2
    assert len(paddings) == sse.BLOCK, "it is random"
