"""Checks that cancelled requests end and free their slots."""

from __future__ import annotations

import grpc

from services.cli.models.connection import told
from services.cli.verify.check import Check, Failed
from services.cli.verify.subject import Asked, Stream, Subject, said

STREAMS = 4
SECONDS = 60.0


def _run(subject: Subject) -> str:
    with told():
        calls = [
            subject.stream(
                Asked(messages=[said(f"Write a long story about {number} sailors.")], max_tokens=None, on=True)
            )
            for number in range(STREAMS)
        ]
        try:
            for call in calls:
                _await_text(call)
        finally:
            for call in calls:
                call.cancel()
    ended = [call.code() for call in calls]
    if any(code is not grpc.StatusCode.CANCELLED for code in ended):
        raise Failed(f"streams ended with {sorted({code.name for code in ended})}", "requests end by themselves early")
    answer = subject.ask(Asked(messages=[said("Hello!")], max_tokens=2))
    return f"{STREAMS} streams without an end, then an answer of {answer.completion_tokens} tokens"


CHECK = Check(
    name="cancel",
    compared=f"that a model answers after {STREAMS} endless streams were cancelled; that these have ended is part of "
    "`unload`",
    run=_run,
)


def _await_text(call: Stream) -> None:
    """Reads until the first piece of an answer."""
    for event in call:
        if event.HasField("delta"):
            return
