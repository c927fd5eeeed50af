"""Checks that the same request gets the same answer: repeated, as a stream, and in a batch.

The comparison of two answers tolerates rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

from allm.text.v1 import chat_pb2

from services.cli.models.connection import readable_errors
from services.cli.problem import Problem
from services.cli.verify.check import Check, CheckFailed
from services.cli.verify.subject import TIE, Request, Scored, Subject, SubjectAnswer, message

SHOWN = 40  # characters of an answer that a message shows
TOKENS = 24
AGAIN = 3
PROMPTS = (
    "Name a river.",
    "Count from one to ten in words.",
    "What do bees make, and what do they need for it?",
    "Write one sentence about the sea at night.",
    "Which is heavier, a kilogram of iron or one of feathers? Say why in a few words.",
    "Hello!",
    "List three colours, one on each line, and nothing else at all.",
    "Tell me what a lighthouse is for, as you would tell it to a child of five.",
)
EXCEPT = f"equal except where two tokens were within {TIE:g} of each other in log-probability"


def _again(subject: Subject) -> str:
    answers = [subject.ask(_request(PROMPTS[0])) for _ in range(AGAIN)]
    if found := first_difference([(answers[0], other) for other in answers[1:]]):
        raise CheckFailed(
            found, "the computation is not repeatable: memory that is read before it is written, or a race"
        )
    return f"{AGAIN} times {len(answers[0].tokens)} tokens"


def _streamed(subject: Subject) -> str:
    for prompt in PROMPTS[:2]:
        whole, streamed = subject.ask(_request(prompt)), _collect(subject, _request(prompt))
        if found := difference(whole, streamed):
            raise CheckFailed(found, "text is lost or repeated where the answer is split into pieces")
    return f"{len(PROMPTS[:2])} answers of at most {TOKENS} tokens"


def _batched(subject: Subject) -> str:
    requests = [_request(prompt) for prompt in PROMPTS]
    alone = [subject.ask(request) for request in requests]
    together = subject.ask_together(requests)
    if found := first_difference(list(zip(alone, together, strict=True))):
        raise CheckFailed(
            found, "requests of one batch disturb each other: positions, masks or states of sequences mix"
        )
    return f"{len(requests)} answers of at most {TOKENS} tokens"


AGAIN_CHECK = Check(name="determinism", compared=f"{AGAIN} greedy answers to one request: {EXCEPT}", run=_again)
STREAM_CHECK = Check(name="streaming", compared=f"a streamed answer and the whole one: {EXCEPT}", run=_streamed)
BATCH_CHECK = Check(
    name="batch", compared=f"the answers to {len(PROMPTS)} requests at once and one by one: {EXCEPT}", run=_batched
)


def _request(prompt: str) -> Request:
    return Request(messages=[message(prompt)], max_tokens=TOKENS)


def _collect(subject: Subject, request: Request) -> SubjectAnswer:
    """Assembles a stream into an answer. Raises Problem if its events are out of order."""
    answer, finished = SubjectAnswer(), False
    with readable_errors():
        for event in subject.stream(request):
            if finished:
                raise Problem(f"{subject.model.id}: the stream continues after its end")
            delta = event.delta
            answer.text += delta.text
            answer.reasoning += delta.reasoning
            answer.tokens += [Scored.of(token) for token in delta.logprobs]
            if event.HasField("finished"):
                finished, answer.finish = True, event.finished.finish_reason
    if not finished:
        raise Problem(f"{subject.model.id}: the stream ended without a finish reason")
    return answer


def difference(one: SubjectAnswer, other: SubjectAnswer) -> str:
    """Describes the first difference of two answers; empty if they are equal, or differ only by a tie of two tokens."""
    pairs = zip(one.tokens, other.tokens, strict=False)
    for at, (mine, theirs) in enumerate(pairs):
        if mine.token != theirs.token:
            return "" if mine.tied or theirs.tied else _difference_at(at, mine.token, theirs.token)
    short, long = sorted((one.tokens, other.tokens), key=len)
    if len(short) < len(long):
        at = len(short)
        return "" if long[at].tied else _difference_at(at, b"the end", long[at].token)
    if (one.text, one.reasoning, one.finish) != (other.text, other.reasoning, other.finish):
        return f"the same tokens became the texts {_show(one)} and {_show(other)}"
    return ""


def first_difference(answers: Sequence[tuple[SubjectAnswer, SubjectAnswer]]) -> str:
    """Describes the first pair that differs: which one, and how; empty if none does."""
    for number, (one, other) in enumerate(answers, 1):
        if found := difference(one, other):
            return f"answer {number} of {len(answers)}: {found}"
    return ""


def _difference_at(at: int, one: bytes, other: bytes) -> str:
    texts = [text.decode(errors="replace")[:SHOWN] for text in (one, other)]
    return f"they differ at token {at + 1}, {texts[0]!r} and {texts[1]!r}, where no two were about equally likely"


def _show(answer: SubjectAnswer) -> str:
    ended = chat_pb2.FinishReason.Name(answer.finish).removeprefix("FINISH_REASON_").lower()
    return f"{answer.text[:SHOWN]!r} ({len(answer.text)} characters, {ended})"
