"""Checks of likelihoods: of texts that every model has read many times, and of the first words of a long prompt.

A grammar forces the texts on the model, so that the log-probability of each token can be read. The check of a long
prompt also asks for the refusal of one beyond the context.
"""

from __future__ import annotations

import math

from services.cli.models.connection import CallRefused
from services.cli.verify.check import Check, CheckFailed
from services.cli.verify.subject import Request, Subject, SubjectAnswer, message

# Bits per byte. Small working models are below 0.8; models with misplaced layers, weights or tokens are above 2.
MOST_BITS = 1.5
LOWEST = -9000.0  # the stand-in for minus infinity is lower
TEXTS = (
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.",
    "We hold these truths to be self-evident, that all men are created equal.",
)


def _rate_texts(subject: Subject) -> str:
    answers = subject.ask_together([forced(text, "Write on.") for text in TEXTS])
    for text, answer in zip(TEXTS, answers, strict=True):
        check_numbers(answer)
        bits = answer.bits_per_byte()
        if bits > MOST_BITS:
            raise CheckFailed(
                f"{bits:.2f} bits per byte for {text!r}",
                "weights in the wrong place, transposed, zeroed or damaged; a wrong rotary base; or the tokenizer of "
                "another model",
            )
    return f"{max(answer.bits_per_byte() for answer in answers):.2f} bits per byte at most"


LIKELIHOOD_CHECK = Check(
    name="likelihood",
    compared=f"the likelihood of the days of the week and of a famous sentence: at most {MOST_BITS:g} bits per byte",
    run=_rate_texts,
    sense=True,
)


def forced(text: str, prompt: str) -> Request:
    """Returns a request that only this text, as a JSON string, can answer."""
    return Request(messages=[message(prompt)], max_tokens=len(text) + 16, schema={"const": text})


def check_numbers(answer: SubjectAnswer) -> None:
    """Raises CheckFailed if log-probabilities are missing, NaN or infinite."""
    if not answer.tokens:
        raise CheckFailed("the answer has no log-probabilities", "the runtime does not return them")
    bad = sum(math.isnan(token.logprob) or token.logprob < LOWEST for token in answer.tokens)
    if bad:
        raise CheckFailed(
            f"{bad} of {len(answer.tokens)} log-probabilities are not finite numbers",
            "the weights hold NaN or infinite numbers, or they overflow in the precision of the computation",
        )


# Bits per byte of words at the beginning of the prompt: about 2 if guessed, below 0.5 if read.
MOST_PROMPT_BITS = 1.0
PHRASE = "The password is: marble falcon seven cedar lantern meadow thirty violet harbor copper thistle."
LINE = "Line {}: the boat moved slowly to the far side of the bay where a light was on."
QUESTION = "What is the password?"
SHARE = 0.5  # largest share of the model's context for the prompt
LONGEST = 131_072  # tokens of the largest context that is overfilled to test the refusal


def _read_long_prompt(subject: Subject) -> str:
    context = subject.model.context_tokens
    wanted = min(subject.prompt_tokens, int(context * SHARE) if context else subject.prompt_tokens)
    line = subject.complete(LINE.format(10))[0]
    filling = [LINE.format(number) for number in range(max(1, wanted // line))]
    answer = subject.ask(forced(PHRASE, "\n".join([PHRASE, *filling, QUESTION])))
    seen = f"{answer.prompt_tokens:,} tokens answered"
    if not subject.random:
        check_numbers(answer)
        bits = answer.bits_per_byte()
        if bits > MOST_PROMPT_BITS:
            raise CheckFailed(
                f"{bits:.2f} bits per byte for words at the beginning of a prompt of {answer.prompt_tokens:,} tokens",
                "positions are wrong (the rotary base, its scaling, a sliding window), or chunks of a prompt are lost",
            )
        seen += f", {bits:.2f} bits per byte for its beginning"
    return seen + _overfill(subject, context)


LONG_PROMPT_CHECK = Check(
    name="long-prompt",
    compared=f"the likelihood of the first words of a long prompt: at most {MOST_PROMPT_BITS:g} bits per byte; "
    "and the refusal of a prompt longer than the context",
    run=_read_long_prompt,
)


def _overfill(subject: Subject, context: int) -> str:
    if not 0 < context <= LONGEST:
        return ""
    try:
        subject.ask(Request(messages=[message("x " * (2 * context))], max_tokens=1))
    except CallRefused:
        return f"; {context:,} and more refused"
    raise CheckFailed(
        f"a prompt of more than {context:,} tokens was answered",
        "the context length in the model's files is not enforced",
    )
