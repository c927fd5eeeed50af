"""Tokens per second of a loaded text model at several numbers of clients, and the memory traffic of decoding alone."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from bench.engine_load import share
from services.text.engine.sampling import SamplingParams

_ORDINARY = 256  # the first tokens of a vocabulary are special ones, or single bytes
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The requests of all levels: every server answers the same ones."""

    clients: tuple[int, ...] = (1, 8, 32, 128)
    prompt_tokens: int = 128
    output_tokens: int = 128

    @property
    def context_tokens(self) -> int:
        """A context that holds a request, and a prompt of `answers.prompts`, in whole pages."""
        return max(192, -(-(self.prompt_tokens + self.output_tokens + 16) // 64) * 64)

    @staticmethod
    def requests(clients: int) -> int:
        """Returns how many requests of a level are measured, after one of each client to warm up."""
        return max(3, 2 * clients)

    def prompt(self, random: Random, vocabulary: int) -> list[int]:
        """Returns a prompt of random tokens, so that none repeats and any vocabulary works."""
        first = min(_ORDINARY, vocabulary // 4)
        return [random.randrange(first, vocabulary) for _ in range(self.prompt_tokens)]


@dataclass(frozen=True, slots=True)
class Level:
    """The figures of one number of clients; times in milliseconds."""

    clients: int
    tokens_per_second: float
    first_ms: float = 0.0  # median time to the first token
    gap_ms: float = 0.0  # median time between two tokens of a request

    def plain(self) -> dict[str, float]:
        """Returns the figures for JSON, rounded."""
        return {name: round(value, 2) for name, value in asdict(self).items()}


async def measure(model: Any, sizes: Sizes, clients: int) -> Level:
    """Measures one level through the service's side of the worker; each client sends its next request at once."""
    await _Load(model, sizes, clients).run(clients)
    load = _Load(model, sizes, clients)
    begun = time.perf_counter()
    await load.run(sizes.requests(clients))
    seconds = time.perf_counter() - begun
    return Level(clients, load.tokens / seconds, 1000 * share(load.first, 0.5), 1000 * share(load.gaps, 0.5))


class _Load:
    def __init__(self, model: Any, sizes: Sizes, clients: int) -> None:
        self._model = model
        self._sizes = sizes
        self._clients = clients
        self._random = Random(clients)  # noqa: S311 (load, no secret)
        self._left = 0
        self.tokens = 0
        self.first: list[float] = []
        self.gaps: list[float] = []

    async def run(self, requests: int) -> None:
        """Answers this many requests."""
        self._left = requests
        await asyncio.gather(*(self._client(number) for number in range(min(self._clients, requests))))

    async def _client(self, number: int) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=self._sizes.output_tokens, ignore_eos=True)
        while self._left > 0:
            self._left -= 1
            prompt = self._sizes.prompt(self._random, self._model.ready.vocabulary)
            times = [time.perf_counter()]
            async with self._model.generate(f"client {number}", prompt, sampling) as answer:
                finish = None
                while finish is None:
                    pieces = await answer.ready()
                    times += [time.perf_counter()] * len(pieces)
                    finish = pieces[-1].finish
                self.tokens += answer.tokens
            self.first.append(times[1] - times[0])
            self.gaps += [late - early for early, late in pairwise(times[1:]) if late > early]


def bytes_of_a_step(path: Path) -> int:
    """Returns the bytes of weights, as stored, that a step of one sequence reads.

    That is everything but the table of embeddings, unless it is also the output's, and of the routed experts the chosen
    share.
    """
    if path.is_file():  # GGUF: only SmolLM2, whose tied weights are all read
        return path.stat().st_size
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    experts = next(
        (config[name] for name in ("num_local_experts", "n_routed_experts", "num_experts") if config.get(name)), 1
    )
    chosen = config.get("num_experts_per_tok", 1) / experts if experts > 1 else 1.0
    read = 0.0
    for file in path.glob("*.safetensors"):
        with file.open("rb") as content:
            header = json.loads(content.read(_LENGTH.unpack(content.read(_LENGTH.size))[0]))
        for name, tensor in header.items():
            if name == "__metadata__" or ("embed" in name and not config.get("tie_word_embeddings")):
                continue
            begin, end = tensor["data_offsets"]
            routed = ".experts." in name
            read += (end - begin) * (chosen if routed else 1.0)
    return int(read)
