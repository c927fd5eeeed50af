"""Token requests on the torch runtime, under a batch loop that tests step manually."""

from __future__ import annotations

import queue
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from services.text.engine.loop import BatchLoop
from services.text.engine.messages import Counters, EngineOptions, Piece, Stepped
from services.text.engine.request_loop import BatchLimits
from services.text.engine.runtime import PicturePart
from services.text.engine.sampling import SamplingParams
from services.text.engine.sequence import Sequence
from services.worker.messages import Cancel, RequestRefused
from tests.late import late
from tests.text.families.parity import Generated
from tests.text.families.published_configs import VOCABULARY

torch_engine = late("services.text.engine.runtimes.torch.engine")

TOKENS = 24  # per answer
# Small enough that prompts are split into chunks and wait for each other.
LIMITS = BatchLimits(max_sequences=8, batch_tokens=64, chunk_tokens=24, cached_cells=512)


def load(folder: Path, dtype: str = "float32", **changes: Any) -> torch_engine.SafetensorsEngine:
    """Loads a model."""
    options: dict[str, Any] = {
        "model_id": folder.name,
        "path": str(folder),
        "threads": 1,  # the models are tiny, and other processes may use the machine
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
    """The pieces received for one request so far."""

    pieces: list[Piece] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return bool(self.pieces and self.pieces[-1].finish)

    @property
    def cached(self) -> int:
        """Prompt tokens taken from the cache."""
        return self.pieces[-1].cached_tokens

    @property
    def text(self) -> str:
        """All text sent so far."""
        return "".join(piece.text for piece in self.pieces)

    def generated(self, engine: torch_engine.SafetensorsEngine) -> Generated:
        """Returns tokens and log-probabilities. Both arrive as text, unique per token of the vocabulary."""
        ids = {_text(engine, token): token for token in range(VOCABULARY)}
        steps = [logprob for piece in self.pieces for logprob in piece.logprobs or ()]
        assert len(steps) == self.pieces[-1].completion_tokens
        return Generated(
            [ids[step.piece] for step in steps], [{ids[text]: value for text, value in step.top} for step in steps]
        )


class TorchSession:
    """Runs requests; every session starts with an empty cache."""

    def __init__(self, engine: torch_engine.SafetensorsEngine, limits: BatchLimits = LIMITS) -> None:
        for sequence in range(engine.sequence_ids):
            engine.drop(sequence)
        self.engine = engine
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.loop = BatchLoop(engine, limits, self.inbox, self._take)
        self.answers: dict[int, Answer] = {}
        self.counters: Counters | None = None
        self.together = 0  # maximum number of requests in one step

    def ask(
        self,
        request: int,
        prompt: Tokens[int],
        pictures: Tokens[PicturePart] = (),
        *,
        client: str = "a",
        **params: Any,
    ) -> None:
        """Sends a request; by default greedy, up to the token limit, with all log-probabilities."""
        sampling = SamplingParams(**({"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True} | params))
        self.answers[request] = Answer()
        parts = [replace(part, embeddings=None) for part in pictures]
        self.inbox.put(
            Sequence(request, client, list(prompt), sampling, None, VOCABULARY, special=True, pictures=parts)
        )

    def ask_text(self, request: int, prompt: str, grammar: str = "", **params: Any) -> None:
        """Sends a prompt as the service does, and requests the text of control tokens."""
        sampling = SamplingParams(**({"temperature": 0.0, "max_tokens": 64} | params))
        constraint = self.engine.constraint(grammar) if grammar else None
        self.answers[request] = Answer()
        self.inbox.put(Sequence(request, "a", self.engine.tokenize(prompt), sampling, constraint, special=True))

    def cancel(self, request: int) -> None:
        """Cancels a request."""
        self.inbox.put(Cancel(request))

    def turn(self, count: int = 1) -> None:
        """Runs `count` steps."""
        for _ in range(count):
            assert self.loop.turn()

    def finish(self, *requests: int) -> None:
        """Runs steps until the requests have ended."""
        while not all(self.answers[request].done for request in requests):
            self.turn()

    def generated(self, request: int) -> Generated:
        """Returns the answer to a request that has ended."""
        return self.answers[request].generated(self.engine)

    def _take(self, message: object) -> None:
        assert not isinstance(message, RequestRefused), message
        assert isinstance(message, Stepped)
        self.counters = message.counters
        self.together = max(self.together, len(message.pieces))
        for piece in message.pieces:
            self.answers[piece.request].pieces.append(piece)


def alone(engine: torch_engine.SafetensorsEngine, prompt: Tokens[int], **params: Any) -> Generated:
    """Returns the answer to a request that runs alone."""
    session = TorchSession(engine)
    session.ask(1, prompt, **params)
    session.finish(1)
    return session.generated(1)


def ends_of(engine: torch_engine.SafetensorsEngine) -> list[int]:
    """Returns the tokens that end a turn; ignore_eos forbids them."""
    return [token for token in range(VOCABULARY) if engine.is_end(token)]


def _text(engine: torch_engine.SafetensorsEngine, token: int) -> bytes:
    """Returns a token's text as log-probabilities spell it, end tokens included."""
    return engine.piece(token, special=True) or engine._vocabulary.text_of(token)
