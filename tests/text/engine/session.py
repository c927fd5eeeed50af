"""Requests on the real llama_cpp runtime, under a batch loop that tests step manually."""

from __future__ import annotations

import queue
from collections import defaultdict
from pathlib import Path

import msgspec

from services.text.engine.loop import BatchLoop
from services.text.engine.messages import EngineOptions, Piece, Stepped
from services.text.engine.request_loop import BatchLimits
from services.text.engine.runtimes.llama_cpp import LlamaEngine
from services.text.engine.sampling import SamplingParams
from services.text.engine.sequence import Sequence


def options(path: Path, **changes) -> EngineOptions:
    defaults = {
        "model_id": "demo",
        "path": str(path),
        "threads": 2,
        "gpu": False,
        "context_tokens": 1024,
        "kv_tokens": 2048,
        "max_sequences": 8,
        "batch_tokens": 512,
        "chunk_tokens": 256,
        "prefix_cache": True,
    }
    return EngineOptions(**(defaults | changes))


class Session:
    """Runs requests on the real engine; every session starts with an empty cache."""

    def __init__(self, engine: LlamaEngine, cached: int = 1024) -> None:
        for sequence in range(engine.sequence_ids):
            engine.drop(sequence)
        self.engine = engine
        self.inbox: queue.SimpleQueue = queue.SimpleQueue()
        self.loop = BatchLoop(engine, BatchLimits(8, 512, 256, cached), self.inbox, self.take)
        self.text: dict[int, str] = defaultdict(str)
        self.ended: dict[int, Piece] = {}
        self.refused: dict[int, msgspec.Struct] = {}
        self.pieces: dict[int, list[Piece]] = defaultdict(list)
        self.order: list[int] = []
        self.counters = None

    def take(self, message: msgspec.Struct) -> None:
        if not isinstance(message, Stepped):
            self.refused[message.request] = message
            return
        self.counters = message.counters
        for piece in message.pieces:
            self.order.append(piece.request)
            self.text[piece.request] += piece.text
            self.pieces[piece.request].append(piece)
            if piece.finish:
                self.ended[piece.request] = piece

    def ask(self, request: int, question: str, client: str = "a", *, grammar: str = "", **params) -> None:
        prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        params = {"temperature": 0, "max_tokens": 24} | params
        asked = {name: params.pop(name) for name in ("logprobs", "special", "cache_key") if name in params}
        constraint = self.engine.constraint(grammar) if grammar else None
        tokens = self.engine.tokenize(prompt)
        self.inbox.put(Sequence(request, client, tokens, SamplingParams(**params), constraint, **asked))

    def finish(self, count: int) -> None:
        while len(self.ended) + len(self.refused) < count:
            self.loop.turn()

    def answer(self, question: str, **params) -> str:
        self.ask(1, question, **params)
        self.finish(1)
        return self.text[1]
