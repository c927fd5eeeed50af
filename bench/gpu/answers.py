"""What a loaded model answers, and how far two answers are apart: text, vectors, transcripts and pictures."""

from __future__ import annotations

import asyncio
import math
import statistics
import struct
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench.gpu.result import Failed
from bench.gpu.tolerances import TOLERANCES
from services.audio.engine.messages import Decoding, Finished, Transcribed
from services.image.engine.messages import Draft, Generate, Parameters, Picture
from services.image.engine.messages import Finished as Drawn
from services.text.engine.messages import TokenLogprob
from services.text.engine.sampling import SamplingParams

TOP = 20  # log-probabilities at each position
SENTENCES = (
    "The capital of France is",
    "A kilometre has a thousand",
    "Water boils at a temperature of",
    "def add(a, b):\n    return",
    "The first president of the United States was",
    "Once upon a time there was a little",
)
PAIRS = ("A man eats pasta.", "Someone is having dinner.", "The stock market fell today.", "Rust never sleeps.")
DRAWINGS = ("a red circle on a blue background", "a large green star on a white background", "a small yellow square")
_SPECIAL = 256  # tokens below are special ones, or single bytes

Prompt = str | list[int]
Said = list[TokenLogprob]


def prompts(real: bool, vocabulary: int) -> list[Prompt]:
    """Returns prompts: sentences, or random tokens of several lengths for random weights."""
    if real:
        return list(SENTENCES)
    random = Random(22)  # noqa: S311 (nothing is secret here)
    first = min(_SPECIAL, vocabulary // 4)
    return [[random.randrange(first, vocabulary) for _ in range(3 + 17 * number)] for number in range(8)]


async def say(model: Any, prompt: Prompt, tokens: int) -> Said:
    """Returns the tokens of a greedy answer with their log-probabilities."""
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    said: Said = []
    async with model.generate("bench", prompt, sampling, logprobs=TOP) as answer:
        while True:
            for piece in await answer.ready():
                said += piece.logprobs or []
                if piece.finish:
                    return said


async def say_all(model: Any, asked: Sequence[Prompt], tokens: int, *, together: bool) -> list[Said]:
    """Answers all prompts, one after another or together."""
    if together:
        return list(await asyncio.gather(*(say(model, prompt, tokens) for prompt in asked)))
    return [await say(model, prompt, tokens) for prompt in asked]


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of answers from the processor's, in nats. Positions after the first other token do not count."""

    positions: int
    median: float  # of the differences of all common log-probabilities
    largest: float
    partings: list[float]  # at the first other token of an answer: how much less likely the processor finds it

    def __str__(self) -> str:
        parted = f"{len(self.partings)} answers part, at gaps up to {max(self.partings, default=0):.3f}"
        return f"{self.positions} positions, difference median {self.median:.4f}, most {self.largest:.3f}; {parted}"

    def check(self, parting: str = "parting") -> None:
        """Raises Failed beyond the tolerances."""
        if self.positions and self.median > TOLERANCES["logprobs"].limit:
            raise Failed("the log-probabilities differ by more than the tolerance")
        if max(self.partings, default=0) > TOLERANCES[parting].limit:
            raise Failed("answers part where no two tokens are about as likely")


def distance(expected: Sequence[Said], found: Sequence[Said]) -> Distance:
    """Compares answers position by position, up to the first other token. Raises Failed if equal ones end elsewhere."""
    differences: list[float] = []
    partings: list[float] = []
    positions = 0
    for one, other in zip(expected, found, strict=True):
        if not one or not other:
            raise Failed("an answer has no tokens")
        for mine, theirs in zip(one, other, strict=False):
            positions += 1
            likely = dict(mine.top)
            differences += [abs(likely[piece] - value) for piece, value in theirs.top if piece in likely]
            if mine.piece != theirs.piece:
                partings.append(mine.logprob - likely.get(theirs.piece, -math.inf))
                break
        else:  # tokens without text, of which some random weights have many, have no log-probability
            if len(one) != len(other):
                raise Failed(f"{len(other)} tokens instead of {len(one)}")
    if any(math.isnan(each) for each in differences):
        raise Failed("a log-probability is not a number")
    return Distance(positions, statistics.median(differences or [0.0]), max(differences, default=0.0), partings)


async def embed(model: Any) -> list[tuple[float, ...]]:
    """Returns the vectors of PAIRS."""
    vectors, _ = await model.embed("bench", PAIRS)
    return [struct.unpack(f"<{len(each) // 4}f", each) for each in vectors]


def check_vectors(expected: Sequence[Sequence[float]], found: Sequence[Sequence[float]]) -> str:
    """Returns the least cosine of two vectors of one text. Raises Failed beyond the tolerance."""
    least = min(
        sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))
        for one, other in zip(expected, found, strict=True)
    )
    if not least >= TOLERANCES["cosine"].limit:
        raise Failed(f"the least cosine is {least:.5f}")
    return f"{len(found)} vectors of {len(found[0])}, least cosine {least:.6f}"


async def transcribe(model: Any, clips: Sequence[Path]) -> list[str]:
    """Returns the transcripts of WAV files, asked together."""
    return list(await asyncio.gather(*(_transcribed(model, clip) for clip in clips)))


async def _transcribed(model: Any, clip: Path) -> str:
    with wave.open(str(clip)) as file:
        samples = file.readframes(file.getnframes())
    words: list[str] = []
    with model.transcribe("bench", Decoding(language="en", temperatures=(0.0,), vad=None)) as job:
        await job.feed(samples, last=True)
        while not isinstance(result := await job.next(), Finished):
            if isinstance(result, Transcribed):
                words += [segment.text for segment in result.segments]
    return "".join(words).strip()


def check_transcripts(expected: Sequence[str], found: Sequence[str]) -> str:
    """Raises Failed if words differ."""
    wrong = [(one, other) for one, other in zip(expected, found, strict=True) if one.split() != other.split()]
    if wrong or not all(found):
        raise Failed(f"{len(wrong)} of {len(found)} transcripts differ: {wrong[:1]}")
    return f"{len(found)} transcripts of {sum(len(each.split()) for each in found)} words are the same"


async def draw(model: Any, steps: int) -> list[bytes]:
    """Returns the pixels of DRAWINGS, drawn together."""
    return list(await asyncio.gather(*(_drawn(model, prompt, steps) for prompt in DRAWINGS)))


async def _drawn(model: Any, prompt: str, steps: int) -> bytes:
    ready = model.ready
    parameters = Parameters(
        width=ready.sizes.width,
        height=ready.sizes.height,
        steps=steps,
        guidance=ready.guidance.default,
        scheduler=ready.default_scheduler,
    )
    pixels = b""
    with model.generate(Generate(client="bench", parameters=parameters, draft=Draft(prompt=prompt, seed=22))) as job:
        while not isinstance(result := await job.next(), Drawn):
            if isinstance(result, Picture) and result.partial is None:
                pixels = result.pixels
    return pixels


def check_pictures(expected: Sequence[bytes], found: Sequence[bytes]) -> str:
    """Raises Failed if pixels differ by more than the tolerance."""
    means = [
        statistics.fmean(abs(a - b) for a, b in zip(one, other, strict=True))
        for one, other in zip(expected, found, strict=True)
    ]
    if max(means) > TOLERANCES["pixels"].limit:
        raise Failed(f"pixels differ by {max(means):.2f} of 255 in the mean")
    return f"{len(found)} pictures, pixels differ by {max(means):.3f} of 255 in the mean"
