"""Checks that every model family must pass: transformers' answers, alone and in a batch."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.late import late
from tests.text.families.parity import Generated, Reference, agree, distance
from tests.text.families.torch_session import LIMITS, TOKENS, TorchSession, alone, ends_of, load

torch = late("torch")

EXACT = 1e-4  # nats of tolerance between two float32 implementations
# bfloat16 has 8 significant bits, so a rounding is off by up to 0.4%, 0.2% on average. A logit passes ten roundings
# or so per layer, about 40 in four layers. Their errors add up like a random walk, and the matrices of these models
# double them: 0.002 * sqrt(40) * 2 = 2.5% of the logits' spread, which is 2.5 nats. That makes 0.06 nats on average,
# and ten times that for the largest of some 50,000 numbers and for a switch between two experts of the same score.
LARGEST = 0.6
TYPICAL = 0.1
WORSE = 1.3  # times transformers' own error in bfloat16; only the order of the sums differs

_SAID: dict[str, tuple[list[int], torch.Tensor]] = {}  # tokens and logprobs of the reference, by a hash of the folder

LENGTHS = (1, 16, 17, 150)  # of prompts: around a page of 16 cells, and beyond a step of 64 tokens


def prompt(length: int, seed: int = 0) -> list[int]:
    """Returns random text tokens."""
    chosen = random.Random(f"{length} {seed}")  # noqa: S311
    return [chosen.randrange(5, 280) for _ in range(length)]


def check_float32(folder: Path, *, packed: bool = False) -> None:
    """Checks that log-probabilities and greedy tokens are transformers' own."""
    engine, reference = load(folder), Reference(folder, packed=packed)
    ends = ends_of(engine)
    for length in LENGTHS:
        asked = prompt(length)
        generated = alone(engine, asked)
        assert generated.tokens == reference.generate(asked, TOKENS, ends), length
        found = distance(reference, asked, generated, ends)
        assert found.largest <= EXACT, (length, found)


def check_bfloat16(folder: Path) -> None:
    """Checks that the log-probabilities are as close to float32 as transformers' own in bfloat16."""
    engine, exact, rounded = load(folder, "bfloat16"), Reference(folder), Reference(folder, torch.bfloat16)
    ends = ends_of(engine)
    ours, theirs = 0.0, 0.0
    for length in LENGTHS[-2:]:
        asked = prompt(length)
        generated = alone(engine, asked)
        found = distance(exact, asked, generated, ends)
        assert found.largest <= LARGEST, (length, found)
        assert found.typical <= TYPICAL, (length, found)
        assert found.missed <= LARGEST, (length, found)
        ours += found.typical
        theirs += float(
            (exact.logprobs(asked, generated.tokens) - rounded.logprobs(asked, generated.tokens)).pow(2).mean().sqrt()
        )
    assert ours <= WORSE * theirs, (ours, theirs)


def check_mixed_batch(folder: Path, dtype: str = "float32") -> None:
    """Checks that eight requests of all lengths, which start and end in a shared batch, answer as each does alone."""
    tolerance = EXACT if dtype == "float32" else LARGEST
    engine, reference = load(folder, dtype), Reference(folder)
    ends = ends_of(engine)
    common = prompt(48, seed=1)
    asked = {number: prompt(length, seed=2) for number, length in enumerate((1, 9, 17, 40, 110), 1)}
    asked |= {number: common + prompt(5 * number, seed=3) for number in (6, 7, 8)}
    sampled = {5: {"temperature": 1.0, "seed": 11}}  # the others are greedy
    session = _crowd(TorchSession(engine), asked, sampled)
    assert session.together == LIMITS.max_sequences
    if engine.reuses_prefixes:
        assert session.answers[7].cached >= len(common), "taken over from a request that still runs"
        assert session.answers[8].cached >= len(common), "taken over from one that has ended"
    for number, tokens in asked.items():
        generated = session.generated(number)
        _check_alike(generated, alone(engine, tokens, **sampled.get(number, {})), dtype, ends)
        found = distance(reference, tokens, generated, ends)
        assert found.largest <= tolerance, (number, found)
        assert number in sampled or found.missed <= tolerance, (number, found)
    _check_all_given_back(session)


def check_memory_pressure(folder: Path) -> None:
    """Checks that requests that outgrow the cache restart with the tokens they have and answer as they do alone."""
    engine = load(folder, kv_tokens=512, context_tokens=512)
    session = TorchSession(engine, replace(LIMITS, cached_cells=0))
    asked = {number: prompt(70, seed=number) for number in range(6)}
    for number, tokens in asked.items():
        session.ask(number, tokens, max_tokens=64)
    session.finish(*asked)
    assert session.counters is not None
    assert session.counters.preempted > 0
    for number, tokens in asked.items():
        _check_alike(session.generated(number), alone(engine, tokens, max_tokens=64), "float32", ends_of(engine))
    _check_all_given_back(session)


def check_shows(folder: Path, other: Path) -> None:
    """Checks that a model with one other setting differs by more than the tolerance, so the checks would notice it."""
    asked = prompt(LENGTHS[-1])
    content = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.iterdir()))).hexdigest()
    if content not in _SAID:  # many variants are compared with the same model
        reference = Reference(folder)
        tokens = reference.generate(asked, TOKENS)
        _SAID[content] = (tokens, reference.logprobs(asked, tokens))
    tokens, expected = _SAID[content]
    off = expected - Reference(other).logprobs(asked, tokens)
    assert float(off.pow(2).mean().sqrt()) > 2 * TYPICAL


def _crowd(session: TorchSession, asked: dict[int, list[int]], sampled: dict[int, dict[str, float]]) -> TorchSession:
    """Sends requests 1 to 8 in sequence and cancels two more, one during prefill and one during decoding."""
    gone, silent = 91, 92
    session.ask(gone, prompt(33, seed=4))
    for number in (1, 2, 3, 4):
        session.ask(number, asked[number])
    session.turn(2)
    session.ask(silent, prompt(180, seed=5))
    session.turn(3)
    for each in (gone, silent):
        assert not session.answers[each].done
        session.cancel(each)
    assert session.answers[gone].pieces
    assert not session.answers[silent].pieces
    for number in (5, 6):
        session.ask(number, asked[number], **sampled.get(number, {}))
        session.turn(2)
    session.ask(7, asked[7])
    session.turn(3)
    session.ask(70, asked[6])  # fills the eighth slot while the others decode
    session.finish(1, 2, 3, 4, 5, 6, 7, 70)
    session.ask(8, asked[8])
    session.finish(8)
    return session


def _check_alike(generated: Generated, other: Generated, dtype: str, ends: Sequence[int]) -> None:
    if dtype == "float32":
        assert generated.tokens == other.tokens
    agree(generated, other, EXACT if dtype == "float32" else LARGEST, ends)


def _check_all_given_back(session: TorchSession) -> None:
    assert session.counters is not None
    assert (session.counters.running, session.counters.waiting, session.counters.active_cells) == (0, 0, 0)
