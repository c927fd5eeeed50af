"""Checks that the same request gets the same answer: repeated, as a stream, and in a batch."""

from __future__ import annotations

from services.cli.models.connection import told
from services.cli.problem import Problem
from services.cli.verify.answer import TIE, Answer, Scored, difference, first_difference
from services.cli.verify.check import Check, Failed
from services.cli.verify.subject import Asked, Subject, said

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
EXCEPT = f"equal but where two tokens were within {TIE:g} of each other in log-probability"


def _again(subject: Subject) -> str:
    answers = [subject.ask(_asked(PROMPTS[0])) for _ in range(AGAIN)]
    if parted := first_difference([(answers[0], other) for other in answers[1:]]):
        raise Failed(parted, "the computation is not repeatable: memory that is read before it is written, or a race")
    return f"{AGAIN} times {len(answers[0].tokens)} tokens"


def _streamed(subject: Subject) -> str:
    for prompt in PROMPTS[:2]:
        whole, streamed = subject.ask(_asked(prompt)), _collect(subject, _asked(prompt))
        if parted := difference(whole, streamed):
            raise Failed(parted, "text is lost or doubled where the answer is cut into pieces")
    return f"{len(PROMPTS[:2])} answers of {TOKENS} tokens at the most"


def _batched(subject: Subject) -> str:
    requests = [_asked(prompt) for prompt in PROMPTS]
    alone = [subject.ask(request) for request in requests]
    together = subject.ask_together(requests)
    if parted := first_difference(list(zip(alone, together, strict=True))):
        raise Failed(parted, "requests of one batch disturb each other: positions, masks or states of sequences mix")
    return f"{len(requests)} answers of {TOKENS} tokens at the most"


AGAIN_CHECK = Check(name="determinism", compared=f"{AGAIN} greedy answers to one request: {EXCEPT}", run=_again)
STREAM_CHECK = Check(name="streaming", compared=f"a streamed answer with the whole one: {EXCEPT}", run=_streamed)
BATCH_CHECK = Check(
    name="batch", compared=f"the answers to {len(PROMPTS)} requests at once with one by one: {EXCEPT}", run=_batched
)


def _asked(prompt: str) -> Asked:
    return Asked(messages=[said(prompt)], max_tokens=TOKENS)


def _collect(subject: Subject, asked: Asked) -> Answer:
    """Assembles a stream into an answer. Raises Problem if its events are out of order."""
    answer, finished = Answer(), False
    with told():
        for event in subject.stream(asked):
            if finished:
                raise Problem(f"{subject.model.id}: the stream goes on after its end")
            delta = event.delta
            answer.text += delta.text
            answer.reasoning += delta.reasoning
            answer.tokens += [Scored.of(token) for token in delta.logprobs]
            if event.HasField("finished"):
                finished, answer.finish = True, event.finished.finish_reason
    if not finished:
        raise Problem(f"{subject.model.id}: the stream ended without saying why")
    return answer
