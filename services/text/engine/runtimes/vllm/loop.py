"""The request loop of a vLLM worker: it admits requests and sends their output, vLLM builds the batches.

vLLM never gets more requests than may run, so that our fairness decides the order and not arrival alone. vLLM decides
which of its requests are in a step, and with how many tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.text.engine.messages import Counters, Hold
from services.text.engine.request_loop import BatchLimits, Inbox, RequestLoop
from services.text.engine.runtime import Sampled
from services.text.engine.runtimes.vllm.core import CoreRequest, CoreStep
from services.text.engine.runtimes.vllm.model import VllmModel
from services.text.engine.sequence import Sequence
from services.worker.loop import Pace
from services.worker.messages import EngineError


class VllmLoop(RequestLoop):
    """The request loop of one model under vLLM."""

    def __init__(
        self, model: VllmModel, limits: BatchLimits, inbox: Inbox, send: Callable[[object], None], pace: Pace
    ) -> None:
        """`pace` bounds the time of a step."""
        super().__init__(model, limits, inbox, send)
        self._model = model
        self._core = model.core
        self._pace = pace
        self._handed: dict[str, Sequence] = {}  # running requests by vLLM's request id
        self._steps = 0
        self._batch = (0, 0)  # sequences and tokens of the last step
        self._preempted = 0

    def _compute(self) -> None:
        self._admit()
        if not self._core.busy:
            return
        self._core.limit(max(self._pace.limit, len(self._running) + 1))
        step = self._core.step()
        if step is None:
            return
        self._steps += 1
        self._batch = step.sequences, step.tokens
        self._pace.took(step.tokens, step.seconds)
        for sequence in self._running:
            self._look(sequence, step)
        self._take_outputs(step)

    def _admit(self) -> None:
        while len(self._running) < self._limits.max_sequences and (sequence := self._next()):
            if not self._core.fits(len(sequence.tokens)):
                return
            self._admitted(sequence)
            self._running.append(sequence)
            asked: CoreRequest = sequence.sampler
            self._core.begin(asked, sequence.tokens[: sequence.prompt_tokens], sequence.client)
            self._handed[asked.key] = sequence

    def _hold(self, message: Hold) -> None:
        """Removes a held request from vLLM, which frees its cells. It is admitted again once its caller reads."""
        super()._hold(message)
        sequence = next((each for each in self._running if each.held and each.request == message.request), None)
        if sequence is None:
            return
        self._core.hold(sequence.sampler)
        self._running.remove(sequence)
        del self._handed[sequence.sampler.key]
        self._waiting.append(sequence)
        self._enter(sequence, "queue")

    def _free(self, sequence: Sequence) -> None:
        self._handed.pop(sequence.sampler.key, None)

    # --- the results of a step

    def _take_outputs(self, step: CoreStep) -> None:
        for output in step.outputs:
            sequence = self._handed.get(output.request_id)
            if sequence is None:
                continue  # ended or held during the step
            if output.prefill_stats is not None:
                sequence.cached = output.prefill_stats.num_cached_tokens
            for place, token in enumerate(output.new_token_ids):
                self._add_token(sequence, token, output.new_logprobs, place)
                if output.request_id not in self._handed:
                    break
            if output.finish_reason is not None and output.request_id in self._handed:
                self._fail(sequence, EngineError("INTERNAL", f"vLLM ended the request: {output.finish_reason}"))

    def _add_token(self, sequence: Sequence, token: int, logprobs: Any, place: int) -> None:
        asked: CoreRequest = sequence.sampler
        grammar = asked.grammar
        if grammar is not None and (fault := grammar.fault):
            self._fail(sequence, fault)
            return
        logprob = None
        if logprobs is not None and sequence.logprobs is not None:
            logprob = self._model.logprob(
                logprobs.logprob_token_ids[place].tolist(), logprobs.logprobs[place].tolist(), asked.params.logprobs
            )
        sequence.tokens.append(token)
        self._enter(sequence, "decode")
        self._emit(sequence, Sampled(token, logprob, grammar is not None and grammar.complete))

    def _fail(self, sequence: Sequence, error: EngineError) -> None:
        self._retire(sequence)
        self._refuse(sequence.request, error)

    def _look(self, sequence: Sequence, step: CoreStep) -> None:
        """Records whether a request was scheduled or preempted in the step."""
        if sequence.phase == "queue":
            if sequence.sampler.begun:
                self._enter(sequence, "prefill", step.started)
        elif sequence.sampler.preempted:
            self._preempted += 1
            self._enter(sequence, "queue")

    def _counters(self) -> Counters:
        running = self._core.running
        return Counters(
            steps=self._steps,
            running=running,
            waiting=len(self._waiting) + len(self._running) - running,
            active_cells=self._core.active_cells,
            cached_cells=self._core.cached_cells,
            preempted=self._preempted,
            batch=self._batch[0],
            batch_tokens=self._batch[1],
        )
