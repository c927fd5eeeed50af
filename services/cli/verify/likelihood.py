"""Checks that the model assigns a high likelihood to texts that every model has read many times.

A grammar forces the texts on the model, so that the log-probability of each token can be read.
"""

from __future__ import annotations

import math

from services.cli.verify.answer import Answer
from services.cli.verify.check import Check, Failed
from services.cli.verify.subject import Request, Subject, message

# Bits per byte. Small working models are below 0.8; models with misplaced layers, weights or tokens are above 2.
MOST_BITS = 1.5
LOWEST = -9000.0  # the stand-in for minus infinity is lower
TEXTS = (
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.",
    "We hold these truths to be self-evident, that all men are created equal.",
)


def _run(subject: Subject) -> str:
    answers = subject.ask_together([forced(text, "Write on.") for text in TEXTS])
    for text, answer in zip(TEXTS, answers, strict=True):
        check_numbers(answer)
        bits = answer.bits_per_byte()
        if bits > MOST_BITS:
            raise Failed(
                f"{bits:.2f} bits per byte for {text!r}",
                "weights in the wrong place, transposed, zeroed or damaged; a wrong rotary base; or the tokenizer of "
                "another model",
            )
    return f"{max(answer.bits_per_byte() for answer in answers):.2f} bits per byte at most"


CHECK = Check(
    name="likelihood",
    compared=f"the likelihood of the days of the week and of a famous sentence: at most {MOST_BITS:g} bits per byte",
    run=_run,
    sense=True,
)


def forced(text: str, prompt: str) -> Request:
    """Returns a request that only this text, as a JSON string, can answer."""
    return Request(messages=[message(prompt)], max_tokens=len(text) + 16, schema={"const": text})


def check_numbers(answer: Answer) -> None:
    """Raises Failed if log-probabilities are missing, NaN or infinite."""
    if not answer.tokens:
        raise Failed("the answer has no log-probabilities", "the runtime does not return them")
    bad = sum(math.isnan(token.logprob) or token.logprob < LOWEST for token in answer.tokens)
    if bad:
        raise Failed(
            f"{bad} of {len(answer.tokens)} log-probabilities are not finite numbers",
            "the weights hold NaN or infinite numbers, or they overflow in the precision of the computation",
        )
