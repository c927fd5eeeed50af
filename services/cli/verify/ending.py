"""Checks that answers end: with a token made for that, or when they are cancelled."""

from __future__ import annotations

import re

import grpc
from allm.text.v1 import chat_pb2

from services.cli.models.connection import readable_errors
from services.cli.verify.check import Check, CheckFailed
from services.cli.verify.subject import Request, Stream, Subject, SubjectAnswer, message

TOKENS = 96
PROMPTS = (
    "What is the capital of France? Answer with one word.",
    "Say hello.",
    "Is fire hot? Answer yes or no.",
)
# Markup in the families' spellings: `<|im_end|>`, `</s>`, `<SPECIAL_12>`, `[EOS]`.
_MARKUP = re.compile(r"\s*[<\[][^<>\[\]\s]*[>\]]\s*")


def _stop(subject: Subject) -> str:
    answers = subject.ask_together([_request(prompt, TOKENS) for prompt in PROMPTS])
    ended = [
        (prompt, answer)
        for prompt, answer in zip(PROMPTS, answers, strict=True)
        if answer.finish == chat_pb2.FINISH_REASON_STOP
    ]
    if not ended:
        raise CheckFailed(
            f"none of {len(PROMPTS)} short answers ended within {TOKENS} tokens",
            "the token that ends a turn is unknown: eos_token_id is missing or wrong, and no token has a known name",
        )
    ends = {_end(subject, prompt, answer) for prompt, answer in ended}
    wrong = [end for end in ends if end and not _MARKUP.fullmatch(end)]
    if wrong:
        raise CheckFailed(
            f"an answer ended with {wrong[0]!r}, which is text",
            "eos_token_id, or another setting for the end of a turn, names the wrong token",
        )
    names = ", ".join(sorted(repr(end) for end in ends if end)) or "a token without text"
    return f"{len(ended)} of {len(PROMPTS)} answers ended by themselves, with {names}"


STOP_CHECK = Check(
    name="stop-tokens",
    compared=f"the ends of {len(PROMPTS)} short answers: at least one ends by itself within {TOKENS} tokens, and the "
    "last token is markup, not text",
    run=_stop,
    sense=True,
)


def _end(subject: Subject, prompt: str, answer: SubjectAnswer) -> str:
    """Returns the token that ended an answer: the likeliest at its position when the model is made to continue."""
    size = len(answer.tokens)
    longer = subject.ask(_request(prompt, answer.completion_tokens, past_end=True))
    if len(longer.tokens) <= size or [each.token for each in longer.tokens[:size]] != [
        each.token for each in answer.tokens
    ]:
        return ""  # rounding led to another answer: the token cannot be determined
    top = longer.tokens[size].top
    return top[0][0].decode(errors="replace") if top else ""


def _request(prompt: str, tokens: int, *, past_end: bool = False) -> Request:
    return Request(messages=[message(prompt)], max_tokens=tokens, past_end=past_end)


STREAMS = 4
SECONDS = 60.0


def _cancel(subject: Subject) -> str:
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
        raise CheckFailed(f"streams ended with {sorted({code.name for code in ended})}", "requests end prematurely")
    answer = subject.ask(Request(messages=[message("Hello!")], max_tokens=2))
    return f"{STREAMS} streams without an end, then an answer of {answer.completion_tokens} tokens"


CANCEL_CHECK = Check(
    name="cancel",
    compared=f"an answer after {STREAMS} endless streams were cancelled; `unload` checks that they have ended",
    run=_cancel,
)


def _await_text(call: Stream) -> None:
    """Reads until the first piece of an answer."""
    for event in call:
        if event.HasField("delta"):
            return
