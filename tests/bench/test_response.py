"""HTTP/1.1 responses and server-sent events, cut at arbitrary positions."""

from __future__ import annotations

import pytest

from bench.response import EventStream, Response, ResponseError
from tests.case import case

CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"7;x=1\r\ndata: a\r\n2\r\n\n\n\r\n10\r\ndata: b\r\n\r\ndata:\r\n6\r\n c \n\nd\r\n0\r\nX-Trailer: t\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\nabcde"


def test_chunked_cut_in_two() -> None:
    for cut in range(1, len(CHUNKED)):
        with case(cut=cut):
            response, events = Response(), EventStream()
            seen = [*events.feed(response.feed(CHUNKED[:cut])), *events.feed(response.feed(CHUNKED[cut:]))]
            assert seen == [b"a", b"b", b"c"]
            assert response.complete
            assert (response.status, response.content_type, response.keep_alive) == (200, "text/event-stream", True)


def test_chunked_byte_by_byte() -> None:
    response, events = Response(), EventStream()
    seen = [data for at in range(len(CHUNKED)) for data in events.feed(response.feed(CHUNKED[at : at + 1]))]
    assert seen == [b"a", b"b", b"c"]
    assert response.complete


def test_a_chunk_s_beginning_is_not_held_back() -> None:
    response, events = Response(), EventStream()
    first = CHUNKED.partition(b"\r\n\r\n")[0] + b"\r\n\r\nff\r\ndata: early\n\n"
    assert events.feed(response.feed(first)) == [b"early"]
    assert not response.complete


def test_known_length() -> None:
    response = Response()
    assert b"".join(response.feed(SIZED[at : at + 1]) for at in range(len(SIZED))) == b"abcde"
    assert response.complete
    assert not response.keep_alive


def test_a_body_may_end_with_the_connection() -> None:
    response = Response()
    assert response.feed(b"HTTP/1.1 200 OK\r\n\r\nabc") == b"abc"
    assert not response.complete
    response.close()
    assert response.complete


def test_events_of_several_lines() -> None:
    assert EventStream().feed(b"data: a\ndata: b\n\n: ping\n\ndata:c\n\n") == [b"a\nb", b"c"]


@pytest.mark.parametrize("junk", [b"HTTP/1.0 200 OK\r\n\r\n", b"hello\r\n\r\n", b"HTTP/1.1 ok\r\n\r\n"])
def test_invalid_responses(junk: bytes) -> None:
    with pytest.raises(ResponseError):
        Response().feed(junk)
