"""Requests of plain tokens on the torch runtime, under a batch loop that is turned by hand."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.text.engine.loop import BatchLoop
from services.text.engine.messages import Counters, EngineOptions, Piece, Stepped
from services.text.engine.request_loop import Arrival, BatchLimits
from services.text.engine.sampling import SamplingParams
from services.worker.messages import Cancel, Refused
from tests.late import late
from tests.text.families.parity import Told
from tests.text.families.published_configs import VOCABULARY

torch_engine = late("services.text.engine.runtimes.torch.engine")

TOKENS = 24  # of an answer
# Small enough that prompts come in chunks and wait for each other.
LIMITS = BatchLimits(max_sequences=8, batch_tokens=64, chunk_tokens=24, cached_cells=512)


def load(folder: Path, dtype: str = "float32", **changes: Any) -> torch_engine.SafetensorsEngine:
    """The engine with a model."""
    options: dict[str, Any] = {
        "model_id": folder.name,
        "path": str(folder),
        "threads": 1,  # the models are tiny, and the machine may be busy
        "gpu": False,
        "context_tokens": 512,
        "kv_tokens": 2048,
        "max_sequences": LIMITS.max_sequences,
        "batch_tokens": LIMITS.batch_tokens,
        "chunk_tokens": LIMITS.chunk_tokens,
        "prefix_cache": True,
        "dtype": dtype,
    }
    return torch_engine.SafetensorsEngine(EngineOptions(**(options | changes)), lambda _: None)


@dataclass
class Answer:
    """What has come of one request so far."""

    pieces: list[Piece] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return bool(self.pieces and self.pieces[-1].finish)

    @property
    def cached(self) -> int:
        """Prompt tokens that were not computed for it."""
        return self.pieces[-1].cached_tokens

    @property
    def text(self) -> str:
        """All that was shown."""
        return "".join(piece.text for piece in self.pieces)

    def told(self, engine: torch_engine.SafetensorsEngine) -> Told:
        """Its tokens and log-probabilities; both come as texts, which differ for all tokens of the small vocabulary."""
        ids = {_text(engine, token): token for token in range(VOCABULARY)}
        steps = [logprob for piece in self.pieces for logprob in piece.logprobs or ()]
        assert len(steps) == self.pieces[-1].completion_tokens
        return Told(
            [ids[step.piece] for step in steps], [{ids[text]: value for text, value in step.top} for step in steps]
        )


class TorchSession:
    """Runs requests; every session begins with an empty cache."""

    def __init__(self, engine: torch_engine.SafetensorsEngine, limits: BatchLimits = LIMITS) -> None:
        for sequence in range(engine.sequence_ids):
            engine.drop(sequence)
        self.engine = engine
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.loop = BatchLoop(engine, limits, self.inbox, self._take)
        self.answers: dict[int, Answer] = {}
        self.counters: Counters | None = None
        self.together = 0  # the most requests that ran in one step

    def ask(self, request: int, prompt: Sequence[int], *, client: str = "a", **params: Any) -> None:
        """Sends a request; greedy, to the token limit and with all log-probabilities where `params` say nothing."""
        sampling = SamplingParams(**({"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True} | params))
        self.answers[request] = Answer()
        self.inbox.put(Arrival(request, client, list(prompt), sampling, None, VOCABULARY, special=True))

    def ask_text(self, request: int, prompt: str, grammar: str = "", **params: Any) -> None:
        """Sends a prompt as a service does, with the text of control tokens wanted."""
        sampling = SamplingParams(**({"temperature": 0.0, "max_tokens": 64} | params))
        constraint = self.engine.constraint(grammar) if grammar else None
        self.answers[request] = Answer()
        self.inbox.put(Arrival(request, "a", self.engine.tokenize(prompt), sampling, constraint, special=True))

    def cancel(self, request: int) -> None:
        """Its caller has gone."""
        self.inbox.put(Cancel(request))

    def turn(self, count: int = 1) -> None:
        """So many steps."""
        for _ in range(count):
            assert self.loop.turn()

    def finish(self, *requests: int) -> None:
        """Until these have ended."""
        while not all(self.answers[request].done for request in requests):
            self.turn()

    def told(self, request: int) -> Told:
        """The answer to a request that has ended."""
        return self.answers[request].told(self.engine)

    def _take(self, message: object) -> None:
        assert not isinstance(message, Refused), message
        assert isinstance(message, Stepped)
        self.counters = message.counters
        self.together = max(self.together, len(message.pieces))
        for piece in message.pieces:
            self.answers[piece.request].pieces.append(piece)


def alone(engine: torch_engine.SafetensorsEngine, prompt: Sequence[int], **params: Any) -> Told:
    """The answer to a request that has the engine for itself."""
    session = TorchSession(engine)
    session.ask(1, prompt, **params)
    session.finish(1)
    return session.told(1)


def ends_of(engine: torch_engine.SafetensorsEngine) -> list[int]:
    """The tokens that end a turn, which are never taken under ignore_eos."""
    return [token for token in range(VOCABULARY) if engine.is_end(token)]


def _text(engine: torch_engine.SafetensorsEngine, token: int) -> bytes:
    """As log-probabilities spell it; ends too."""
    return engine.piece(token, special=True) or engine._vocabulary.text_of(token)
