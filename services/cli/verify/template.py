"""Checks that conversations are rendered in the format that the model's family publishes.

The rendered prompt is not visible, but its effect is: a raw prompt with the same tokens makes the same tokens likely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.cli.verify.answer import TIE
from services.cli.verify.check import Check, Failed, Skipped
from services.cli.verify.rendering import Rendering, of_architecture
from services.cli.verify.subject import ASSISTANT, SYSTEM, USER, Request, Subject, message

INSTRUCTIONS = "You are a careful clerk."
TURNS = (("What is in the box?",), ("What is in the box?", "Three apples.", "And in the bag?"))


def _run(subject: Subject) -> str:
    forms = [form for form in of_architecture(subject.model.architecture) if _knows(subject, form)]
    if not forms:
        raise Skipped(
            f"no published prompt format is known for the architecture {subject.model.architecture} and this model's "
            "special tokens"
        )
    seen = [_compare(subject, form) for form in forms]
    fitting = [form.name for form, fault in zip(forms, seen, strict=True) if not fault]
    if not fitting:
        faults = "; ".join(f"{form.name}: {fault}" for form, fault in zip(forms, seen, strict=True))
        raise Failed(faults, "the chat template is not the one that the model was trained with")
    return f"the prompts match {fitting[0]}"


CHECK = Check(
    name="chat-template",
    compared="the prompts of two conversations and the family's published format: equally many tokens, and the same "
    f"likeliest next token, within {TIE:g} of its log-probability",
    run=_run,
)


def _knows(subject: Subject, form: Rendering) -> bool:
    """Reports whether all marks of a form are single tokens of the model."""
    added = _added(subject)
    return all(subject.complete(mark)[0] - added == 1 for mark in form.marks)


def _added(subject: Subject) -> int:
    """Returns the number of tokens that the tokenizer puts in front of every text."""
    return subject.complete("x")[0] - 1  # one token in about every vocabulary


def _compare(subject: Subject, form: Rendering) -> str:
    """Describes the first deviation from the published form; empty if there is none."""
    added = _added(subject)
    if added and not form.bos:
        return f"the tokenizer puts {added} tokens in front of every prompt, the published prompts begin with none"
    for turns in TURNS:
        given, likely = _given(subject, turns)
        counts = set()
        for text in form.render(INSTRUCTIONS, turns):
            tokens, next_likely = subject.complete(text.removeprefix(form.bos) if added else text)
            counts.add(tokens)
            if tokens == given and _alike(likely, next_likely):
                break
        else:
            return _fault(len(turns), given, counts)
    return ""


def _given(subject: Subject, turns: Sequence[str]) -> tuple[int, dict[bytes, float]]:
    roles = [USER if at % 2 == 0 else ASSISTANT for at in range(len(turns))]
    spoken = [message(turn, role) for turn, role in zip(turns, roles, strict=True)]
    answer = subject.ask(Request(messages=[message(INSTRUCTIONS, SYSTEM), *spoken], max_tokens=1, thinking=True))
    return answer.prompt_tokens, dict(answer.tokens[0].top) if answer.tokens else {}


def _alike(one: dict[bytes, float], other: dict[bytes, float]) -> bool:
    """Reports whether two lists of likely tokens belong to the same prompt."""
    if not one or not other:
        return not one and not other  # neither API returns the end of the turn
    token = max(one, key=lambda each: one[each])
    if math.isnan(one[token]):
        return all(math.isnan(value) for value in other.values())
    if token not in other:  # JSON encodes partial characters differently
        return any(b"\xef\xbf\xbd" in each for each in other)
    return abs(other[token] - one[token]) < TIE


def _fault(turns: int, given: int, counts: set[int]) -> str:
    where = f"with a system message and {turns} turn{'s' if turns > 1 else ''}"
    if given not in counts:
        published = " or ".join(map(str, sorted(counts)))
        return f"{where} the prompt has {given} tokens, the published format {published}"
    return f"{where} the prompt has {given} tokens, as in the published format, but different ones"
