"""Checks that a long prompt is read as a whole, and that one beyond the context is refused."""

from __future__ import annotations

from services.cli.models.connection import Refused
from services.cli.verify.check import Check, Failed
from services.cli.verify.likelihood import check_numbers, forced
from services.cli.verify.subject import Request, Subject, message

# Bits per byte of words at the beginning of the prompt: about 2 if guessed, below 0.5 if read.
MOST_BITS = 1.0
PHRASE = "The password is: marble falcon seven cedar lantern meadow thirty violet harbor copper thistle."
LINE = "Line {}: the boat moved slowly to the far side of the bay where a light was on."
QUESTION = "What is the password?"
SHARE = 0.5  # largest share of the model's context for the prompt
LONGEST = 131_072  # tokens of the largest context that is overfilled to test the refusal


def _run(subject: Subject) -> str:
    context = subject.model.context_tokens
    wanted = min(subject.prompt_tokens, int(context * SHARE) if context else subject.prompt_tokens)
    line = subject.complete(LINE.format(10))[0]
    filling = [LINE.format(number) for number in range(max(1, wanted // line))]
    answer = subject.ask(forced(PHRASE, "\n".join([PHRASE, *filling, QUESTION])))
    seen = f"{answer.prompt_tokens:,} tokens answered"
    if not subject.random:
        check_numbers(answer)
        bits = answer.bits_per_byte()
        if bits > MOST_BITS:
            raise Failed(
                f"{bits:.2f} bits per byte for words at the beginning of a prompt of {answer.prompt_tokens:,} tokens",
                "positions are wrong (the rotary base, its scaling, a sliding window), or chunks of a prompt are lost",
            )
        seen += f", {bits:.2f} bits per byte for its beginning"
    return seen + _overfill(subject, context)


CHECK = Check(
    name="long-prompt",
    compared=f"the likelihood of the first words of a long prompt: at most {MOST_BITS:g} bits per byte; "
    "and the refusal of a prompt longer than the context",
    run=_run,
)


def _overfill(subject: Subject, context: int) -> str:
    if not 0 < context <= LONGEST:
        return ""
    try:
        subject.ask(Request(messages=[message("x " * (2 * context))], max_tokens=1))
    except Refused:
        return f"; {context:,} and more refused"
    raise Failed(
        f"a prompt of more than {context:,} tokens was answered",
        "the context length in the model's files is not enforced",
    )
