"""Checks that cancelled requests end and free their slots."""

from __future__ import annotations

import grpc

from services.cli.models.connection import readable_errors
from services.cli.verify.check import Check, Failed
from services.cli.verify.subject import Request, Stream, Subject, message

STREAMS = 4
SECONDS = 60.0


def _run(subject: Subject) -> str:
    with readable_errors():
        prompts = [message(f"Write a long story about {number} sailors.") for number in range(STREAMS)]
        calls = [subject.stream(Request(messages=[one], max_tokens=None, past_end=True)) for one in prompts]
        try:
            for call in calls:
                _await_text(call)
        finally:
            for call in calls:
                call.cancel()
    ended = [call.code() for call in calls]
    if any(code is not grpc.StatusCode.CANCELLED for code in ended):
        raise Failed(f"streams ended with {sorted({code.name for code in ended})}", "requests end prematurely")
    answer = subject.ask(Request(messages=[message("Hello!")], max_tokens=2))
    return f"{STREAMS} streams without an end, then an answer of {answer.completion_tokens} tokens"


CHECK = Check(
    name="cancel",
    compared=f"an answer after {STREAMS} endless streams were cancelled; `unload` checks that they have ended",
    run=_run,
)


def _await_text(call: Stream) -> None:
    """Reads until the first piece of an answer."""
    for event in call:
        if event.HasField("delta"):
            return
