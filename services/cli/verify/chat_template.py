"""Checks that conversations are rendered in the format that the model's family publishes.

The rendered prompt is not visible, but its effect is: a raw prompt with the same tokens makes the same tokens likely.
The published formats are a table of forms, filled by hand. A form is recognised by its marks: special tokens of the
models trained on it. If a family has published several forms, all are listed.
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.cli.verify.check import Check, CheckFailed, Skipped
from services.cli.verify.subject import ASSISTANT, SYSTEM, TIE, USER, Request, Subject, message

TODAY = "{today}"
DAY = "{day}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A prompt format. `{}` in a turn is its text; tuples hold published alternatives."""

    name: str
    architectures: frozenset[str]  # as spelled in GGUF and config.json
    marks: tuple[str, ...]
    begin: str = ""
    bos: str = ""  # the part of `begin` that a tokenizer may add by itself
    system: tuple[str, ...]
    user: str
    assistant: tuple[str, ...]
    opening: tuple[str, ...]  # the beginning of the assistant's turn

    def render(self, system: str, turns: tuple[str, ...]) -> Iterator[str]:
        """Yields all forms of a conversation: a system message, then alternating turns of user and assistant."""
        for instructions, spoken, opening in itertools.product(self.system, self.assistant, self.opening):
            parts = [self.begin, _fill(instructions, system)]
            parts += [_fill(self.user if at % 2 == 0 else spoken, turn) for at, turn in enumerate(turns)]
            yield "".join([*parts, opening])


def of_architecture(architecture: str) -> list[Rendering]:
    """Returns the published forms for an architecture."""
    return [each for each in RENDERINGS if architecture in each.architectures]


def _fill(form: str, text: str) -> str:
    now = datetime.datetime.now().astimezone()
    dated = form.replace(TODAY, now.strftime("%Y-%m-%d")).replace(DAY, now.strftime("%d %b %Y"))
    return dated.replace("{}", text)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CHATML = ("<|im_start|>", "<|im_end|>")
_CHATML_TURN = "<|im_start|>{role}\n{{}}<|im_end|>\n"
_LLAMA_TURN = "<|start_header_id|>{role}<|end_header_id|>\n\n{{}}<|eot_id|>"
_LLAMA_DATED = "Cutting Knowledge Date: December 2023\nToday Date: {date}\n\n{{}}"
_HARMONY_SYSTEM = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
    "Current date: {today}\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be "
    "included for every message.<|end|><|start|>developer<|message|># Instructions\n\n{}"
)
_THOUGHTLESS = "<think></think>"

RENDERINGS = (
    Rendering(
        name="ChatML (Qwen, SmolLM2)",
        architectures=_words(
            "llama qwen qwen2 qwen2moe qwen2_moe qwen3 qwen3moe qwen3_moe qwen3next qwen3_next smollm3"
        ),
        marks=_CHATML,
        system=(_CHATML_TURN.format(role="system"),),
        user=_CHATML_TURN.format(role="user"),
        assistant=(_CHATML_TURN.format(role="assistant"),),
        opening=("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n"),
    ),
    Rendering(
        name="Llama 3",
        architectures=_words("llama"),
        marks=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        begin="<|begin_of_text|>",
        bos="<|begin_of_text|>",
        system=(
            _LLAMA_TURN.format(role="system"),
            *(
                f"<|start_header_id|>system<|end_header_id|>\n\n{_LLAMA_DATED.format(date=date)}<|eot_id|>"
                for date in ("26 Jul 2024", DAY)
            ),
        ),
        user=_LLAMA_TURN.format(role="user"),
        assistant=(_LLAMA_TURN.format(role="assistant"),),
        opening=("<|start_header_id|>assistant<|end_header_id|>\n\n",),
    ),
    Rendering(
        name="Harmony (gpt-oss)",
        architectures=_words("gpt-oss gpt_oss"),
        marks=("<|start|>", "<|message|>", "<|channel|>", "<|end|>"),
        system=(f"{_HARMONY_SYSTEM}<|end|>", f"{_HARMONY_SYSTEM}\n\n<|end|>"),
        user="<|start|>user<|message|>{}<|end|>",
        assistant=("<|start|>assistant<|channel|>final<|message|>{}<|end|>",),
        opening=("<|start|>assistant",),
    ),
    Rendering(
        name="GLM-4",
        architectures=_words("chatglm glm glm4 glm4moe glm4_moe glm4_moe_lite"),
        marks=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
        begin="[gMASK]<sop>",
        bos="[gMASK]",
        system=("<|system|>\n{}",),
        user="<|user|>\n{}",
        assistant=("<|assistant|>\n{}", f"<|assistant|>\n{_THOUGHTLESS}\n{{}}", f"<|assistant|>{_THOUGHTLESS}{{}}"),
        opening=("<|assistant|>", "<|assistant|>\n", "<|assistant|><think>", "<|assistant|>\n<think>"),
    ),
    Rendering(
        name="Nemotron 3",
        architectures=_words("nemotron_h nemotron_h_moe"),
        marks=_CHATML,
        system=(_CHATML_TURN.format(role="system"),),
        user=_CHATML_TURN.format(role="user"),
        assistant=(
            f"<|im_start|>assistant\n{_THOUGHTLESS}{{}}<|im_end|>\n",
            _CHATML_TURN.format(role="assistant"),
        ),
        opening=("<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n"),
    ),
    Rendering(
        name="Nemotron-H and Nemotron Nano 2",
        architectures=_words("nemotron_h nemotron_h_moe"),
        marks=("<SPECIAL_10>", "<SPECIAL_11>"),
        system=("<SPECIAL_10>System\n{}\n",),
        user="<SPECIAL_11>User\n{}\n",
        assistant=("<SPECIAL_11>Assistant\n{}\n", "<SPECIAL_11>Assistant\n{}\n<SPECIAL_12>\n"),
        opening=("<SPECIAL_11>Assistant\n", "<SPECIAL_11>Assistant\n<think>\n"),
    ),
)


INSTRUCTIONS = "You are a careful clerk."
TURNS = (("What is in the box?",), ("What is in the box?", "Three apples.", "And in the bag?"))


def _check(subject: Subject) -> str:
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
        raise CheckFailed(faults, "the chat template is not the one that the model was trained with")
    return f"the prompts match {fitting[0]}"


CHECK = Check(
    name="chat-template",
    compared="the prompts of two conversations and the family's published format: equally many tokens, and the same "
    f"likeliest next token, within {TIE:g} of its log-probability",
    run=_check,
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
