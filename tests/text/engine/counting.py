"""A runtime without weights for tests of the batch loop: every token is predictable.

The next token of a sequence is a function of all its tokens. The runtime counts KV cells like llama.cpp and refuses
what llama.cpp would refuse.
"""

from __future__ import annotations

import queue
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from services.text.engine import sequence
from services.text.engine.__main__ import _prepare
from services.text.engine.loop import BatchLoop
from services.text.engine.messages import DecoderReady, Hold, Piece, Pixels, Stepped, Submit, TokenLogprob
from services.text.engine.request_loop import BatchLimits
from services.text.engine.runtime import Outcomes, OutOfCells, PicturePart, Sampled, TokenSpan, picture_token
from services.text.engine.sampling import SamplingParams
from services.text.engine.speculation import StepCosts
from services.worker.loop import Pace
from services.worker.messages import Cancel, EngineError, RequestRefused
from tests.text.engine.prepared import prepared

END = 0
SHOWN = 32  # tokens below are control tokens


def following(tokens: Sequence[int]) -> int:
    """Returns the token after `tokens`: a letter, never the end token."""
    return 97 + (sum(tokens) * 31 + len(tokens)) % 26


class Script:
    """A grammar of this runtime: the literal answer. `!` makes the grammar fail, each `~` is slow to find."""

    def __init__(self, answer: str) -> None:
        self.rest = answer
        self.last = self.token_seconds = 0.0

    def following(self) -> tuple[int, bool]:
        """Returns the next character's token, and whether it is the last one."""
        token, self.rest = ord(self.rest[0]), self.rest[1:]
        self.last, self.token_seconds = time.monotonic(), 0.04 * (chr(token) == "~")
        return token, not self.rest


@dataclass
class Sampler:
    """The sampler of one request."""

    params: SamplingParams
    script: Script
    logprobs: int | None

    def choose(self, tokens: list[int]) -> Sampled | EngineError:
        token, last = self.script.following() if self.script.rest else (following(tokens), False)
        if token == ord("!"):
            return EngineError("INTERNAL", "the grammar failed")
        logprob = None if self.logprobs is None else TokenLogprob(bytes([token]), -float(len(tokens)), [])
        return Sampled(token, logprob, last)


class Counting:
    """A runtime without weights that asserts the validity of every call."""

    def __init__(
        self,
        cells: int,
        sequences: int = 4,
        context: int = 10_000,
        *,
        streams: bool = False,
        states: bool = False,
        extra: int = 4,
        whole: bool = False,
    ) -> None:
        """`extra`: sequence ids in addition to those of running requests. `whole`: pictures are computed at once."""
        self.ready = DecoderReady(
            context_tokens=context,
            kv_tokens=cells,
            max_sequences=sequences,
            vocabulary=256,
            chat_template="",
            bos="",
            eos="",
            add_bos=False,
            sees=True,
        )
        self.whole = whole
        self.encoded: list[int] = []  # the token of each encoded part
        self.sequence_ids = sequences + extra
        self.reuses_prefixes = not states
        self.reuses_states = states
        self.shares_cells = not streams
        self.copied = 0
        self.cells: dict[int, list[tuple[int, object]]] = defaultdict(list)  # per sequence: (token, cell identity)
        self.samplers = 0
        self.scored: list[int] = []  # tokens of each span whose prompt is scored
        self.steps: list[list[tuple[int, int]]] = []  # per step: (sequence, tokens)

    def used(self) -> int:
        return len({id(cell) for held in self.cells.values() for _, cell in held})

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def see(self, pixels: Pixels) -> tuple[list[int], list[PicturePart]]:
        """Each row of a picture is a part of `width` tokens; there is a line break between two rows."""
        tokens: list[int] = []
        parts = []
        for row in range(pixels.height):
            token = picture_token(pixels.digest, row)
            parts.append(PicturePart(len(tokens), pixels.width, token, whole=self.whole))
            tokens += [token] * pixels.width + [10]
        return tokens[:-1], parts

    def encode(self, part: PicturePart) -> None:
        assert part.embeddings is None
        if part.count == 13:
            raise EngineError("OUT_OF_MEMORY", "no memory for this picture")
        self.encoded.append(part.source)
        part.embeddings = [(part.source, at) for at in range(part.count)]

    def constraint(self, grammar: str) -> Script:
        return Script(grammar)

    def piece(self, token: int, special: bool) -> bytes:
        return b"" if token < SHOWN and not special else bytes([token])

    def name(self, token: int) -> bytes:
        return bytes([token])

    def is_end(self, token: int) -> bool:
        return token == END

    def sampler(
        self, params: SamplingParams, prompt: Sequence[int], constraint: Script | None, logprobs: int | None
    ) -> Sampler:
        assert all(token >= 0 for token in prompt)
        self.samplers += 1
        return Sampler(params, constraint or Script(""), logprobs)

    def free_sampler(self, sampler: Sampler) -> None:
        self.samplers -= 1

    def step(self, spans: Sequence[TokenSpan]) -> list[Outcomes]:
        if self.used() + sum(len(span.tokens) for span in spans) > self.ready.kv_tokens:
            raise OutOfCells
        assert len({span.sequence for span in spans}) == len(spans)
        for span in spans:
            assert span.start == len(self.cells[span.sequence]), "positions must follow each other"
            assert span.tokens
            self.check(span)
            self.cells[span.sequence] += [(token, object()) for token in span.tokens]
        for span in spans:
            if scoring := span.scoring:
                assert not span.drafts
                following = [*span.tokens[1:], *scoring.tokens[len(span.tokens) - 1 :]]
                assert list(scoring.tokens) == following[: len(scoring.tokens)], "each follows the token at its place"
                self.scored.append(len(span.tokens))
                places = range(span.start + 1, span.start + 1 + len(scoring.tokens))
                scoring.found += [
                    TokenLogprob(bytes([token]), -float(at), [])
                    for token, at in zip(scoring.tokens, places, strict=True)
                ]
        self.steps.append([(span.sequence, len(span.tokens)) for span in spans])
        return [self.outcomes(span) for span in spans]

    def check(self, span: TokenSpan) -> None:
        """Asserts that a span is of the vocabulary, or has the embeddings of its tokens."""
        if span.embeddings is None:
            assert all(token >= 0 for token in span.tokens)
            return
        assert span.sampler is None
        place = span.start - span.part.start
        assert span.embeddings == [(token, place + at) for at, token in enumerate(span.tokens)]
        assert not self.whole or (place, len(span.tokens)) == (0, span.part.count)

    def outcomes(self, span: TokenSpan) -> Outcomes:
        if span.sampler is None:
            assert not span.drafts
            return []
        tokens = [token for token, _ in self.cells[span.sequence]]
        until = len(tokens) - span.drafts
        found = [span.sampler.choose(tokens[:until])]
        while span.goes_on(len(found) - 1, found[-1]):
            found.append(span.sampler.choose(tokens[: until + len(found)]))
        return found

    def copy(self, source: int, target: int, tokens: int) -> None:
        assert not self.cells[target]
        assert len(self.cells[source]) >= tokens
        assert len(self.cells[source]) == tokens or not self.reuses_states, "a state has no parts"
        self.copied += 1
        held = self.cells[source][:tokens]
        self.cells[target] = held if self.shares_cells else [(token, object()) for token, _ in held]

    def drop(self, sequence: int, start: int = 0) -> None:
        assert start == 0 or not self.reuses_states, "a state cannot be cut"
        del self.cells[sequence][start:]


class Loop:
    """A batch loop that tests step manually."""

    def __init__(
        self,
        runtime: Counting,
        *,
        batch: int = 64,
        chunk: int = 32,
        cached: int = 0,
        queue_tokens: int = 0,
        pace: Pace | None = None,
        costs: StepCosts | None = None,
    ) -> None:
        self.runtime = runtime
        self.inbox: queue.SimpleQueue = queue.SimpleQueue()
        limits = BatchLimits(runtime.ready.max_sequences, batch, chunk, cached, queue_tokens)
        self.loop = BatchLoop(runtime, limits, self.inbox, self.take, pace, costs)
        self.text: dict[int, str] = defaultdict(str)
        self.pieces: dict[int, list[Piece]] = defaultdict(list)
        self.ended: dict[int, Piece] = {}
        self.refused: dict[int, RequestRefused] = {}
        self.order: list[int] = []  # request ids, in the order of their pieces
        self.counters = None
        self.phases: dict[int, list[str]] = defaultdict(list)
        self.at: list[float] = []  # start time of each phase

    def take(self, message: object) -> None:
        if isinstance(message, RequestRefused):
            self.refused[message.request] = message
            return
        assert isinstance(message, Stepped)
        self.counters = message.counters
        for phase in message.phases:
            assert phase.request not in self.ended
            self.phases[phase.request].append(phase.name)
            self.at.append(phase.at)
        for piece in message.pieces:
            assert piece.request not in self.ended
            self.order.append(piece.request)
            self.text[piece.request] += piece.text
            self.pieces[piece.request].append(piece)
            if piece.finish:
                self.ended[piece.request] = piece

    def ask(self, request: int, prompt: list[int], client: str = "a", *, grammar: str = "", **params) -> None:
        params.setdefault("max_tokens", 5)
        names = ("logprobs", "special", "cache_key", "deadline", "prediction", "scored")
        asked = {name: params.pop(name) for name in names if name in params}
        constraint = self.runtime.constraint(grammar) if grammar else None
        self.inbox.put(sequence.Sequence(request, client, prompt, SamplingParams(**params), constraint, **asked))

    def show(self, request: int, prompt: str, pictures: Sequence[Pixels], client: str = "a", **params) -> list[int]:
        """Asks about pictures, which stand at the `*` of the prompt. Returns the prompt's tokens."""
        params.setdefault("max_tokens", 5)
        key = params.pop("cache_key", "")
        submit = Submit(
            request, client, prompt, SamplingParams(**params), cache_key=key, pictures=tuple(pictures), mark="*"
        )
        shown = prepared(_prepare(self.runtime, submit, lambda message: None))
        self.inbox.put(shown)
        return list(shown.tokens)

    def cancel(self, request: int) -> None:
        self.inbox.put(Cancel(request))

    def hold(self, request: int, held: bool = True) -> None:
        self.inbox.put(Hold(request, held))

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.turn()

    def until_done(self, count: int) -> None:
        for _ in range(10_000):
            if len(self.ended) + len(self.refused) >= count:
                return
            self.loop.turn()
        raise AssertionError(f"only {sorted(self.ended)} ended")


def expected(prompt: list[int], count: int) -> str:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(following(tokens))
    return bytes(tokens[len(prompt) :]).decode()


def drawing(seed: int, width: int, height: int = 1) -> Pixels:
    """A picture that `Counting` sees as `height` parts of `width` tokens."""
    return Pixels(width=width, height=height, pixels=bytes([seed]) * (width * height * 3), param=f"picture {seed}")


def prompt(seed: int, length: int) -> list[int]:
    return [(seed * 7 + at * at) % 90 + 1 for at in range(length)]
