"""Speculation without a second model: guesses of the next tokens, taken from where the latest tokens occurred before.

Answers often repeat text: an edit copies most of its prompt, JSON repeats its keys. A step then computes a decoding
sequence's newest token and some guesses behind it. The runtime samples row after row with the request's own sampler and
grammar, and stops at the first guess that differs from the sampled token. So the tokens are those of an ordinary step;
only their number per step changes (prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding).

Guesses come from the request's own tokens, from the prediction that its caller sent, and from the latest answers to the
same client. A step gets as many of them as the measured cost of its tokens is worth: few if they often fail, none if
the batch is full enough that every token costs its own time. Guesses that are not computed are still compared with the
sampled tokens, so it costs nothing to find out that an answer is unpredictable.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.text.engine.runtime import Runtime, TokenSpan
from services.text.engine.sampling import SamplingParams
from services.text.engine.sequence import Sequence

NGRAM = "ngram"  # the value of the setting
MOST_GUESSES = 24  # per sequence and step
LONGEST_MATCH = 16  # latest tokens that are compared with earlier ones
KEPT_CLIENTS = 64
KEPT_TOKENS = 8192  # latest tokens of a client's answers
SEPARATOR = -1  # between two answers, and for tokens of pictures
# By class of match (its length, or the prediction): the assumed chance that the next guess is right.
CHANCES = (0.15, 0.3, 0.5, 0.7, 0.85, 0.9)
PREDICTED = len(CHANCES) - 1
LEARNING_RATE = 0.12
FORGETTING_RATE = 0.005
WORTH_MORE = 1.1  # times the tokens per second without guesses, below which a step has none
SIZES = (1, 2, 4, 8, 16, 32)  # tokens of measured steps
MEASURED_SECONDS = 1.0  # after which no larger step is measured
MEASURED_TIMES = 3
LEAST_SIZES = 2  # that are measured on any machine
# Relative cost of a further token for a lone request with a seed: it repeats exactly, so no measured time may decide.
FIXED_COST = 0.5


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may follow, and the class of the match that they come from."""

    tokens: list[int]
    kind: int


class StepCosts:
    """Seconds of steps by their number of tokens: measured while loading, then corrected by the steps that run."""

    def __init__(self, seconds: Tokens[float]) -> None:
        """`seconds`: of steps with the first of `SIZES`; at least two."""
        known = np.maximum.accumulate(np.array(seconds))
        sizes = SIZES[: len(known)]
        self._known = np.interp(range(sizes[-1] + 1), sizes, known).tolist()  # by number of tokens
        self._slope = float(known[-1] - known[-2]) / (sizes[-1] - sizes[-2])  # seconds of a further token
        self._level = 1.0  # of ordinary steps, relative to those measured: the machine is busier, or prompts are longer
        self._extra = 1.0  # of steps with guesses, relative to ordinary ones

    def of(self, tokens: int, *, guessing: bool) -> float:
        """Returns the seconds of a step with that many tokens."""
        last = len(self._known) - 1
        seconds: float = self._known[min(tokens, last)] + max(0, tokens - last) * self._slope
        return seconds * self._extra if guessing else seconds

    def took(self, tokens: int, seconds: float, *, guessing: bool) -> None:
        """Records a step. One that was disturbed counts at most four times."""
        ratio = seconds / self.of(tokens, guessing=False)
        if guessing:
            ratio /= self._level
            self._extra += LEARNING_RATE * (min(ratio, 4.0) - self._extra)
        else:
            self._level += LEARNING_RATE * (min(ratio, 4.0 * self._level) - self._level)
            self._extra += FORGETTING_RATE * (1.0 - self._extra)  # so that guesses are tried again


class _FixedCosts:
    """Costs of a lone sequence with a seed."""

    def of(self, tokens: int, *, guessing: bool) -> float:
        """Returns the cost of a step with that many tokens, relative to one token."""
        return 1 + FIXED_COST * (tokens - 1)


_FIXED = _FixedCosts()


class Drafter:
    """The guesses of one request. Every token that it gets is compared with the latest guess."""

    def __init__(self, sequence: Sequence, answers: NDArray[np.int32]) -> None:
        """`answers`: tokens of the client's latest answers, with separators."""
        self._prediction = sequence.prediction
        self._answers = answers
        self._before = len(self._prediction) + 1
        self._tokens = np.empty(self._before + sequence.last_token + 1, np.int32)
        self._tokens[: self._before] = [*self._prediction, SEPARATOR]
        self._count = self._before  # of the tokens in the array
        self._chances = list(CHANCES)
        self._guess: Guess | None = None
        self._follows = bool(self._prediction)  # whether the answer is the prediction's beginning
        self._take(sequence.tokens[: sequence.prompt_tokens])

    def guess(self, sequence: Sequence, most: int) -> Guess | None:
        """Returns up to `most` tokens that may follow the request's tokens, or None."""
        self._learn(sequence.tokens[self._count - self._before :], sequence.generated)
        found = self._find(sequence.generated)
        self._guess = found
        if found is None or most <= 0:
            return None
        return Guess(found.tokens[:most], found.kind)

    def chance(self, guess: Guess) -> float:
        """Returns the chance that a token of a guess is right if those before it are."""
        return self._chances[guess.kind]

    def _take(self, tokens: list[int]) -> None:
        self._tokens[self._count : self._count + len(tokens)] = [max(token, SEPARATOR) for token in tokens]
        self._count += len(tokens)

    def _learn(self, new: list[int], generated: int) -> None:
        """Adds new tokens and compares them with the latest guess."""
        if self._follows:
            start = generated - len(new)
            self._follows = self._prediction[start:generated] == new
        guess = self._guess or Guess([], 0)
        for token, guessed in zip(new, guess.tokens, strict=False):
            right = token == guessed
            self._chances[guess.kind] += LEARNING_RATE * (right - self._chances[guess.kind])
            if not right:
                break
        self._take(new)

    def _find(self, generated: int) -> Guess | None:
        if self._follows and generated < len(self._prediction):
            return Guess(self._prediction[generated : generated + MOST_GUESSES], PREDICTED)
        own = self._tokens[: self._count]
        end = own[-LONGEST_MATCH:]
        length, place = _latest(own, end)
        source = own
        if len(self._answers):
            other, there = _latest(self._answers, end)
            if other > length:
                length, place, source = other, there, self._answers
        if not length:
            return None
        tokens = source[place : place + MOST_GUESSES].tolist()
        if SEPARATOR in tokens:
            del tokens[tokens.index(SEPARATOR) :]
        return Guess(tokens, min((length - 1).bit_length(), PREDICTED - 1)) if tokens else None


def _latest(tokens: NDArray[np.int32], end: NDArray[np.int32]) -> tuple[int, int]:
    """Finds the longest repetition of the last tokens of `end` in `tokens`, of several the latest.

    Returns its length and the place after it; length 0: there is none. The end of `tokens` itself does not count.
    """
    places = np.flatnonzero(tokens[:-1] == end[-1])
    length, place = 0, 0
    while len(places):
        length, place = length + 1, int(places[-1]) + 1
        if length == len(end):
            break
        places = places[places >= length]
        places = places[tokens[places - length] == end[-1 - length]]
    return length, place


class Speculation:
    """The guesses of a loop's requests."""

    def __init__(self, runtime: Runtime, costs: StepCosts | None, *, shared: bool) -> None:
        """`costs`: from `measured_costs`; None: off. `shared`: whether a client's answers help its later requests."""
        self._runtime = runtime
        self._costs = costs
        self._shared = shared
        self._answers: OrderedDict[str, NDArray[np.int32]] = OrderedDict()
        self.drafted = 0  # guesses that steps have computed
        self.accepted = 0

    def draft(self, decoding: list[Sequence], room: int) -> dict[Sequence, list[int]]:
        """Returns the guesses for the next step of these sequences, `room` tokens at most."""
        count = len(decoding)
        if self._costs is None or room <= 0:
            return {}
        costs: StepCosts | _FixedCosts = self._costs
        if count == 1 and decoding[0].params.seed is not None:
            costs = _FIXED
        elif not _pays(self._costs, count):
            return {}
        guesses: list[tuple[Sequence, Guess, float]] = []
        for sequence in decoding:
            if sequence.drafter is None:
                kept = None if sequence.params.seed is not None else self._answers.get(sequence.client)
                sequence.drafter = Drafter(sequence, np.empty(0, np.int32) if kept is None else kept)
            # The last token of an answer is sampled, never guessed.
            found = sequence.drafter.guess(sequence, min(MOST_GUESSES, sequence.last_token - len(sequence.tokens) - 1))
            if found and (tokens := self._before_end(found.tokens)):
                guesses.append((sequence, Guess(tokens, found.kind), sequence.drafter.chance(found)))
        chosen = _worth(guesses, count, room, costs)
        return {sequence: guess.tokens[: chosen[sequence]] for sequence, guess, _ in guesses if chosen.get(sequence)}

    def took(self, sequences: int, drafts: int, seconds: float) -> None:
        """Records the time of a step in which every sequence decoded."""
        if self._costs is not None:
            self._costs.took(sequences + drafts, seconds, guessing=drafts > 0)

    def record(self, sequence: Sequence, drafted: int) -> None:
        """Counts the guesses that a step computed for a sequence."""
        sequence.drafted += drafted
        self.drafted += drafted

    def accept(self, sequence: Sequence) -> None:
        """Counts a guess that was right."""
        sequence.accepted += 1
        self.accepted += 1

    def ended(self, sequence: Sequence) -> None:
        """Keeps an ended request's answer for the guesses of its client's next requests."""
        sequence.drafter = None
        if self._costs is None or not self._shared or not sequence.generated:
            return
        answer = np.array([*sequence.tokens[sequence.prompt_tokens :][-KEPT_TOKENS:], SEPARATOR], np.int32)
        before = self._answers.pop(sequence.client, answer[:0])
        self._answers[sequence.client] = np.concatenate([before, answer])[-KEPT_TOKENS:]
        if len(self._answers) > KEPT_CLIENTS:
            self._answers.popitem(last=False)

    def _before_end(self, tokens: list[int]) -> list[int]:
        """Cuts guesses at a token that ends the turn: nothing follows it."""
        for place, token in enumerate(tokens):
            if self._runtime.is_end(token):
                return tokens[:place]
        return tokens


def _pays(costs: StepCosts, count: int) -> bool:
    """Returns True if guesses that are always right would make a step of `count` sequences faster per token."""
    bare = costs.of(count, guessing=False)
    return any(
        (count + more) * bare > WORTH_MORE * count * costs.of(count + more, guessing=True) for more in (1, 4, 16)
    )


def _worth(
    guesses: Iterable[tuple[Sequence, Guess, float]], count: int, room: int, costs: StepCosts | _FixedCosts
) -> dict[Sequence, int]:
    """Returns the number of guesses per sequence that make a step of `count` sequences fastest per expected token."""
    ranked = sorted(
        (
            (chance ** (place + 1), place, sequence)
            for sequence, guess, chance in guesses
            for place in range(len(guess.tokens))
        ),
        key=lambda one: (-one[0], one[1]),
    )[:room]
    best, wanted = WORTH_MORE * count / costs.of(count, guessing=False), 0
    expected = float(count)
    for number, (chance, _, _) in enumerate(ranked, 1):
        expected += chance
        speed = expected / costs.of(count + number, guessing=True)
        if speed > best:
            best, wanted = speed, number
    chosen: dict[Sequence, int] = {}
    for _, _, sequence in ranked[:wanted]:
        chosen[sequence] = chosen.get(sequence, 0) + 1
    return chosen


def measured_costs(runtime: Runtime, most: int) -> StepCosts | None:
    """Measures steps of up to `most` tokens with guesses. None: the model cannot take back a wrong guess.

    Only models without recurrent state can: their cells after a position are simply dropped.
    """
    if not runtime.reuses_prefixes:
        return None
    sampler = runtime.sampler(SamplingParams(temperature=0), [0], None, None)

    def compute(size: int) -> float:
        started = time.monotonic()
        runtime.step([TokenSpan(0, 0, [0] * size, sampler, drafts=size - 1)])
        took = time.monotonic() - started
        runtime.drop(0)
        return took

    compute(1)  # a GPU records the step
    seconds: list[float] = []
    began = time.monotonic()
    for size in SIZES:
        if len(seconds) >= LEAST_SIZES and (size > most or time.monotonic() - began > MEASURED_SECONDS):
            break
        best = compute(size)
        for _ in range(MEASURED_TIMES - 1):
            if time.monotonic() - began < MEASURED_SECONDS / 2:
                best = min(best, compute(size))
        seconds.append(best)
    runtime.free_sampler(sampler)
    return StepCosts(seconds)
