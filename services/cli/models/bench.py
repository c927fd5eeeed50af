"""Benchmarks a model under its runtimes through the gateway, as a single client, and records the results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from allm.models.v1 import model_pb2, model_service_pb2

from services.cli.models.catalog import Catalog, restored_afterwards
from services.cli.models.meters import ChatMeter, Meter, Round, SpeechMeter
from services.cli.models.page import modality_word
from services.cli.models.progress import wait_until
from services.cli.models.stage import loaded
from services.cli.problem import Problem

LOAD_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The measurements to make."""

    rounds: int  # in addition to the warm-up round
    chat: ChatMeter
    speech: SpeechMeter | None  # None: no recording was given


class Bench:
    """Measures models. `say` receives progress messages."""

    def __init__(
        self,
        catalog: Catalog,
        plan: Plan,
        say: Callable[[str], None],
    ) -> None:
        self._catalog = catalog
        self._plan = plan
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

    def _measure(self, model: model_pb2.Model, runtime: str, meter: Meter) -> model_pb2.Benchmark:
        self._say(f"loading {model.id} with {runtime}")
        wanted = self._catalog.load(model.id, runtime)
        current, reached = wait_until(self._catalog, wanted, loaded(runtime, everywhere=True), LOAD_SECONDS)
        if reached.state != "loaded":
            raise Problem(f"{model.id} cannot be loaded with {runtime}: {reached.state}: {reached.reason}")
        device = _device(current, runtime)
        rounds: list[Round] = []
        for number in range(self._plan.rounds + 1):
            what = f"round {number} of {self._plan.rounds}" if number else "warming up"
            self._say(f"{runtime} on {device}: {what}")
            measured = meter.round(model.id)
            if number:
                rounds.append(measured)
        benchmark = model_pb2.Benchmark(
            runtime=runtime,
            device=device,
            tokens_per_second=statistics.median(each.rate for each in rounds),
            first_token_seconds=statistics.median(each.first_token for each in rounds),
            peak_memory_bytes=_peak(self._catalog.get(model.id).model, runtime),
        )
        self._catalog.record(model.id, benchmark)
        return benchmark

    def _meter(self, model: model_pb2.Model) -> Meter:
        if "chat" in model.capabilities:
            return self._plan.chat
        if "transcription" not in model.capabilities:
            able = ", ".join(model.capabilities) or modality_word(model.modality)
            raise Problem(
                f"{model.id} is a model for {able}: `allm models bench` measures only models that chat or transcribe"
            )
        if self._plan.speech is None:
            raise Problem(f"{model.id} transcribes speech: give a recording with --audio FILE")
        return self._plan.speech


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
        reasons = [f"there is no runtime {asked}; there are {', '.join(_names(verdicts)) or 'none'}"]
    raise Problem(f"{model.id} cannot be measured: {'; '.join(dict.fromkeys(reasons))}")


def _names(verdicts: Sequence[model_service_pb2.RuntimeVerdict]) -> list[str]:
    return sorted({verdict.runtime for verdict in verdicts})


def _device(model: model_pb2.Model, runtime: str) -> str:
    """Returns the device of the replicas that serve with `runtime`. Raises Problem if there are several kinds."""
    devices = sorted({replica.device for replica in model.replicas if replica.runtime == runtime})
    if len(devices) != 1:
        raise Problem(
            f"{model.id} runs on {' and '.join(devices) or 'no device'}: a benchmark "
            "needs replicas on exactly one kind of device"
        )
    return devices[0]


def _peak(model: model_pb2.Model, runtime: str) -> int:
    return max((replica.peak_memory_bytes for replica in model.replicas if replica.runtime == runtime), default=0)
