"""Benchmarks a model under its runtimes through the gateway, as a single client, and records the results."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from allm.audio.v1 import transcription_service_pb2 as pb
from allm.audio.v1 import transcription_service_pb2_grpc
from allm.models.v1 import model_pb2, model_service_pb2
from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc

from services.cli.models.catalog import CatalogClient, restored_afterwards
from services.cli.models.connection import by_model, readable_errors
from services.cli.models.page import modality_word
from services.cli.models.progress import loaded, wait_until
from services.cli.problem import Problem

LOAD_SECONDS = 3600.0


class Bench:
    """Measures models."""

    def __init__(
        self,
        catalog: CatalogClient,
        rounds: int,
        chat: ChatBench,
        speech: TranscriptionBench | None,
        say: Callable[[str], None],
    ) -> None:
        """`rounds`: in addition to the warm-up round. `speech`: None if no recording was given. `say` receives progress
        messages."""
        self._catalog = catalog
        self._rounds = rounds
        self._chat = chat
        self._speech = speech
        self._say = say

    def run(self, model_id: str, runtime: str = "") -> list[model_pb2.Benchmark]:
        """Measures and records a model under one runtime, or under each that can run it; restores its state afterwards.

        Raises:
            Problem: this kind of model cannot be measured yet, no runtime can run it, or a request fails.
        """
        explained = self._catalog.explain(model_id)
        model = explained.model
        meter = self._meter(model)
        names = able_runtimes(explained, runtime)
        with restored_afterwards(self._catalog, model.id, self._say):
            return [self._measure(model, name, meter) for name in names]

    def _measure(
        self, model: model_pb2.Model, runtime: str, meter: ChatBench | TranscriptionBench
    ) -> model_pb2.Benchmark:
        self._say(f"loading {model.id} with {runtime}")
        wanted = self._catalog.load(model.id, runtime)
        current, reached = wait_until(self._catalog, wanted, loaded(runtime, everywhere=True), LOAD_SECONDS)
        if reached.state != "loaded":
            raise Problem(f"{model.id} cannot be loaded with {runtime}: {reached.state}: {reached.reason}")
        device = _device(current, runtime)
        rounds: list[Round] = []
        for number in range(self._rounds + 1):
            what = f"round {number} of {self._rounds}" if number else "warming up"
            self._say(f"{runtime} on {device}: {what}")
            measured = meter.round(model.id)
            if number:
                rounds.append(measured)
        ran = [each for each in self._catalog.get(model.id).model.replicas if each.runtime == runtime]
        benchmark = model_pb2.Benchmark(
            runtime=runtime,
            device=device,
            tokens_per_second=statistics.median(each.rate for each in rounds),
            first_token_seconds=statistics.median(each.first_token for each in rounds),
            peak_memory_bytes=max(each.peak_memory_bytes for each in ran) if ran else 0,
        )
        self._catalog.record(model.id, benchmark)
        return benchmark

    def _meter(self, model: model_pb2.Model) -> ChatBench | TranscriptionBench:
        if "chat" in model.capabilities:
            return self._chat
        if "transcription" not in model.capabilities:
            able = ", ".join(model.capabilities) or modality_word(model.modality)
            raise Problem(
                f"{model.id} is a model for {able}: `allm models bench` measures only models that chat or transcribe"
            )
        if self._speech is None:
            raise Problem(f"{model.id} transcribes speech: give a recording with --audio FILE")
        return self._speech


def able_runtimes(explained: model_service_pb2.ExplainModelResponse, asked: str) -> list[str]:
    """Returns the names of the runtimes to measure, the chosen one first.

    Raises:
        Problem: there is no replica, or none can run the model, or none with the requested runtime.
    """
    model = explained.model
    verdicts = [verdict for resolution in explained.resolutions for verdict in resolution.runtimes]
    if not explained.resolutions:
        raise Problem(f"no service for {modality_word(model.modality)} models is running")
    able = list(dict.fromkeys(verdict.runtime for verdict in verdicts if verdict.able))
    wanted = [name for name in able if not asked or name == asked]
    if wanted:
        return wanted
    reasons = [f"{verdict.runtime}: {verdict.reason}" for verdict in verdicts if not asked or verdict.runtime == asked]
    if not reasons:
        reasons = [
            f"there is no runtime {asked}; known are {', '.join(sorted({each.runtime for each in verdicts})) or 'none'}"
        ]
    raise Problem(f"{model.id} cannot be measured: {'; '.join(dict.fromkeys(reasons))}")


def _device(model: model_pb2.Model, runtime: str) -> str:
    """Returns the device of the replicas that serve with `runtime`. Raises Problem if there are several kinds."""
    devices = sorted({replica.device for replica in model.replicas if replica.runtime == runtime})
    if len(devices) != 1:
        raise Problem(
            f"{model.id} runs on {' and '.join(devices) or 'no device'}: a benchmark "
            "needs replicas on exactly one kind of device"
        )
    return devices[0]


ROUND_SECONDS = 600.0
# One token each in almost every vocabulary; longer prompts repeat them.
WORDS = "the sea was calm and the small boat moved slowly to the far side of the bay where a light was on".split()  # noqa: SIM905 (as many quoted words are harder to read)
PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Round:
    """A measured request: seconds to its first token or text, and tokens per second."""

    first_token: float
    rate: float


@dataclass(frozen=True, slots=True)
class ChatBench:
    """Measures a chat model through the typed chat API."""

    chat: chat_service_pb2_grpc.ChatServiceStub
    tokens: int  # tokens of each answer, at least 2
    prompt_tokens: int  # approximate

    def round(self, model_id: str) -> Round:
        """Sends one request. Raises Problem if it fails, or its answer is too short to measure."""
        request = chat_service_pb2.StreamChatCompletionRequest(
            model=model_id,
            messages=[
                chat_pb2.ChatMessage(
                    role=chat_pb2.CHAT_ROLE_USER, content=[chat_pb2.ContentPart(text=prompt(self.prompt_tokens))]
                )
            ],
            sampling=chat_pb2.SamplingParameters(temperature=0, max_tokens=self.tokens, ignore_eos=True),
        )
        began = time.perf_counter()
        first = last = 0.0
        generated = 0
        with readable_errors():
            for event in self.chat.StreamChatCompletion(request, timeout=ROUND_SECONDS, metadata=by_model(model_id)):
                if event.HasField("delta"):
                    first = first or time.perf_counter()
                elif event.HasField("finished"):
                    last = time.perf_counter()
                    generated = event.finished.usage.completion_tokens
        if not first or generated < 2 or last <= first:
            raise Problem(f"{model_id} answered with {generated} tokens, which are too few to measure: raise --tokens")
        return Round(first - began, (generated - 1) / (last - first))


def prompt(tokens: int) -> str:
    """Returns a text of about that many tokens, with a unique beginning, so that no cache holds it."""
    words = [WORDS[at % len(WORDS)] for at in range(max(0, tokens - 12))]  # about 12 tokens are the random number's
    return f"{uuid.uuid4().hex[:8]}: {' '.join(words)}"


@dataclass(frozen=True, slots=True)
class TranscriptionBench:
    """Measures a transcription model through the typed audio API."""

    audio: transcription_service_pb2_grpc.TranscriptionServiceStub
    recording: Path

    def round(self, model_id: str) -> Round:
        """Measures the rate with the whole recording, and the time to first text with a stream of it.

        Raises:
            Problem: a request fails, the recording has no speech, or it cannot be read.
        """
        try:
            sound = self.recording.read_bytes()
        except OSError as error:
            raise Problem(f"{self.recording}: {error.strerror}") from error
        config = pb.TranscriptionConfig(model=model_id, temperature=0)
        with readable_errors():
            rate = self._rate(config, sound)
            first = self._first_text(config, sound)
        if not rate or not first:
            raise Problem(f"{model_id} found no speech in {self.recording}: give a recording of speech")
        return Round(first, rate)

    def _rate(self, config: pb.TranscriptionConfig, sound: bytes) -> float:
        """Returns tokens per second of the whole request."""
        requests = [pb.TranscribeRequest(audio=piece) for piece in _pieces(sound)]
        began = time.perf_counter()
        answer = self.audio.Transcribe(iter([pb.TranscribeRequest(config=config), *requests]), timeout=ROUND_SECONDS)
        return answer.transcript.tokens / (time.perf_counter() - began)

    def _first_text(self, config: pb.TranscriptionConfig, sound: bytes) -> float:
        """Returns seconds until any text, final or not, arrives; 0: none does."""
        requests = [pb.StreamTranscribeRequest(audio=piece) for piece in _pieces(sound)]
        began = time.perf_counter()
        opening = pb.StreamTranscribeRequest(config=config)
        call = self.audio.StreamTranscribe(iter([opening, *requests]), timeout=ROUND_SECONDS)
        for event in call:
            if event.segment.text or event.partial.text:
                call.cancel()
                return time.perf_counter() - began
        return 0.0


def _pieces(sound: bytes) -> Iterator[bytes]:
    for start in range(0, len(sound), PIECE_BYTES):
        yield sound[start : start + PIECE_BYTES]
