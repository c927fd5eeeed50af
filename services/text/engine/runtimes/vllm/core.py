"""vLLM's engine core in this process: requests in, the tokens of one step out.

This is the part of vLLM that schedules and computes, one level below its AsyncLLM, which would put a process and a
tokenizer of its own between a step and its caller. Steps are taken by our loop: what is told, cancelled or held back
between two of them holds from the next one on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vllm import SamplingParams as VllmParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.request import StructuredOutputRequest

from services.text.engine.runtimes.vllm.grammar import ConstraintBackend, ConstraintGrammar


@dataclass(slots=True, eq=False)
class CoreRequest:
    """What is asked of vLLM, and once it has begun, the request as vLLM has it."""

    params: VllmParams
    grammar: ConstraintGrammar | None = None
    request: Request | None = None

    @property
    def key(self) -> str:
        """Its name there; empty before it has begun."""
        return "" if self.request is None else str(self.request.request_id)

    @property
    def computing(self) -> bool:
        """Whether it has a place, and not only a turn."""
        return self.request is not None and bool(self.request.status == RequestStatus.RUNNING)

    @property
    def preempted(self) -> bool:
        """Whether it had to give up its cells and waits."""
        return self.request is not None and bool(self.request.status == RequestStatus.PREEMPTED)

    @property
    def begun(self) -> bool:
        """Whether it has a place, or has ended."""
        return self.computing or (self.request is not None and bool(self.request.is_finished()))


@dataclass(frozen=True, slots=True)
class CoreStep:
    """What a step gave."""

    outputs: list[EngineCoreOutput]
    sequences: int
    tokens: int
    started: float  # on the monotonic clock
    seconds: float


def configured(arguments: dict[str, Any]) -> Any:
    """vLLM's configuration. Raises what vLLM raises, of a model that it does not know, or of arguments."""
    return EngineArgs(**arguments).create_engine_config()


class Core:
    """Not thread-safe."""

    def __init__(self, config: Any) -> None:
        """Loads the model that a configuration of vLLM's is for. Raises what vLLM raises."""
        self._core = EngineCore(config, Executor.get_class(config), log_stats=True)
        self._scheduler: Any = self._core.scheduler
        self._pool = self._scheduler.kv_cache_manager.block_pool
        self._block = int(config.cache_config.block_size)
        self.vocabulary = int(config.model_config.get_vocab_size())
        self.context_tokens = int(config.model_config.max_model_len)
        self._core.structured_output_manager.backend = ConstraintBackend(self.vocabulary)
        self._budget = int(self._scheduler.max_num_scheduled_tokens)
        self._chunk = int(config.scheduler_config.long_prefill_token_threshold)
        self._numbers = 0

    @property
    def cells(self) -> int:
        """Cells of the whole cache; a block is vLLM's own."""
        return int((self._pool.num_gpu_blocks - 1) * self._block)

    @property
    def active_cells(self) -> int:
        """Cells in blocks that requests hold."""
        return self.cells - self.free_cells

    @property
    def free_cells(self) -> int:
        """Cells that a request can have, those included that only the prefix cache holds."""
        return int(self._pool.get_num_free_blocks() * self._block)

    @property
    def cached_cells(self) -> int:
        """About how many only the prefix cache holds: of what requests hold, all but each one's last block is in it."""
        shared = self.active_cells - len(self._scheduler.running) * self._block
        return max(0, len(self._pool.cached_block_hash_to_block) * self._block - max(0, shared))

    @property
    def running(self) -> int:
        """Requests that have a place."""
        return len(self._scheduler.running)

    @property
    def busy(self) -> bool:
        """Whether a step would compute something, or bring what an earlier one has computed."""
        return bool(self._scheduler.running or self._scheduler.waiting or self._core.batch_queue)

    def limit(self, tokens: int) -> None:
        """From the next step on, a step has so many tokens at the most. Where several requests want to be computed, one
        prompt takes half of them at the most, and no more than a chunk.
        """
        self._scheduler.max_num_scheduled_tokens = most = min(tokens, self._budget)
        self._scheduler.scheduler_config.long_prefill_token_threshold = min(self._chunk, -(-most // 2))

    def fits(self, tokens: int) -> bool:
        """Whether there is room for a prompt of so many tokens beside those that have a turn already."""
        waiting = sum(request.num_tokens for request in self._scheduler.waiting)
        return not self._scheduler.requests or waiting + tokens + self._block <= self.free_cells

    def begin(self, asked: CoreRequest, prompt: list[int], salt: str | None = None) -> None:
        """Gives a request its turn: for the first time, or again after `hold`. It shares prefixes with those of the
        same `salt` only.
        """
        if asked.request is None:
            asked.request = self._new(asked, prompt, salt)
            self._core.add_request(asked.request)
        else:
            self._scheduler.waiting.add_request(asked.request)

    def hold(self, asked: CoreRequest) -> None:
        """Takes a request's turn and its cells; the prefix cache keeps what it has computed."""
        if asked.computing:
            self._scheduler.running.remove(asked.request)
            # What a step that still runs will say of it is dropped: it is computed again.
            self._scheduler._preempt_request(asked.request, time.monotonic(), drop_stale_output=True)
            self._scheduler.prev_step_scheduled_req_ids.discard(asked.key)
        self._scheduler.waiting.remove_requests([asked.request])

    def end(self, asked: CoreRequest) -> None:
        """Forgets a request, wherever it is."""
        if asked.request is not None:
            self._core.abort_requests([asked.key])

    def forget_prefixes(self) -> None:
        """Empties the prefix cache."""
        self._core.reset_prefix_cache()

    def step(self) -> CoreStep | None:
        """Computes a step; None where it has only been begun, and the next call brings what came of it."""
        started = time.monotonic()
        found, computed = self._core.step_fn()
        self._core.post_step(computed)
        if not found:
            return None
        every = list(found.values())
        sequences, tokens = _sizes(every)
        outputs = [output for each in every for output in each.outputs]
        return CoreStep(outputs, sequences, tokens, started, time.monotonic() - started)

    def _new(self, asked: CoreRequest, prompt: list[int], salt: str | None) -> Request:
        self._numbers += 1
        request = Request(
            str(self._numbers),
            prompt,
            asked.params,
            None,
            cache_salt=salt,
            block_hasher=self._core.request_block_hasher,
        )
        if asked.grammar is not None:  # compiled already: vLLM shall not wait for it
            request.structured_output_request = StructuredOutputRequest(StructuredOutputsParams(grammar="ours"))
            request.structured_output_request.grammar = asked.grammar
        return request


def _sizes(every: list[EngineCoreOutputs]) -> tuple[int, int]:
    """Sequences and tokens of a step."""
    for details in _details(every):
        sequences = details.num_ctx_requests + details.num_generation_requests
        return sequences, details.num_ctx_tokens + details.num_generation_tokens
    return 0, 0


def _details(every: list[EngineCoreOutputs]) -> Iterator[Any]:
    for each in every:
        if each.scheduler_stats and each.scheduler_stats.iteration_details:
            yield each.scheduler_stats.iteration_details
