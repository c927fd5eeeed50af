"""The reader of one streamed chat completion: parses OpenAI's chunks and records their times."""

from __future__ import annotations

from typing import Any

import msgspec


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """The answer to one request: the time of every piece of text, the usage, and the error."""

    __slots__ = ("cached_tokens", "completion_tokens", "done", "error", "prompt_tokens", "sent", "times")

    def __init__(self, sent: float) -> None:
        self.sent = sent  # when the client began this request, in seconds of the monotonic clock
        self.times: list[float] = []  # the arrival of each event with text
        self.completion_tokens: int | None = None  # None: the server sent no usage
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.done = False  # [DONE] has arrived
        self.error: str | None = None

    def event(self, data: bytes, now: float) -> None:
        """Processes the data of one event that arrived at `now`."""
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _decode(data)
        except msgspec.DecodeError as problem:
            self.fail(f"an event that is no chunk: {problem}")
            return
        if chunk.error is not None:
            self.fail(f"error in the stream: {error_message(chunk.error)}")
        if chunk.choices and chunk.choices[0].delta.content:
            self.times.append(now)
        if chunk.usage is not None:
            self.completion_tokens = chunk.usage.completion_tokens
            self.prompt_tokens = chunk.usage.prompt_tokens
            details = chunk.usage.prompt_tokens_details
            self.cached_tokens = (details.cached_tokens or 0) if details else 0

    def fail(self, reason: str) -> None:
        """Records an error; the first reason stays, because later ones mostly follow from it."""
        if self.error is None:
            self.error = reason

    def finish(self, wanted_tokens: int, says_done: bool = True) -> None:
        """Checks the complete response; anything missing is an error, [DONE] only if `says_done` is set."""
        if says_done and not self.done:
            self.fail("the stream ended without [DONE]")
        elif self.completion_tokens is None:
            self.fail("the stream held no usage")
        elif self.completion_tokens != wanted_tokens:
            self.fail(f"{self.completion_tokens} output tokens instead of {wanted_tokens}")
        elif not self.times:
            self.fail("no text in the stream")


def error_message(error: object) -> str:
    """Returns the message of an OpenAI error object, or the object itself as text."""
    if isinstance(error, dict):
        error = error.get("message", error)
    return str(error)[:200]


def body_error(body: bytes) -> str:
    """Returns the message of an error response's body."""
    try:
        return error_message(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError, IndexError):
        return body.decode("utf-8", "replace")[:200]
