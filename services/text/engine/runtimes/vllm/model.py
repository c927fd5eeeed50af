"""A safetensors model under vLLM: our tokenizer, vLLM's engine core."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams as VllmParams

from services.text.engine.constraint import Constraint
from services.text.engine.kv_cells import cache_cells, context_size
from services.text.engine.messages import EngineOptions, Ready, TokenLogprob
from services.text.engine.runtime import check_bias
from services.text.engine.runtimes.torch.vocabulary import (
    TokenVocabulary,
    VocabularySpeaker,
    chat_template,
    end_tokens,
    read_json,
)
from services.text.engine.runtimes.vllm.arguments import eager, engine_arguments
from services.text.engine.runtimes.vllm.core import Core, CoreRequest, configured
from services.text.engine.runtimes.vllm.grammar import ConstraintGrammar
from services.text.engine.sampling import SamplingParams
from services.text.engine.token_budget import step_pace
from services.worker.loop import Pace
from services.worker.messages import EngineError, is_out_of_memory

GPU_SHARE = 0.85  # share of the free GPU memory to use with `kv_tokens=0`
LOWEST_LOGPROB = -9999.0  # replaces minus infinity, which JSON lacks
# The text around the reason in errors of vLLM's configuration.
_PYDANTIC = re.compile(r"^\d+ validation errors? for \w+ (Value error, )?| \[type=.*$")
_MESSAGE_CHARACTERS = 400  # of vLLM's reason for refusing a model
MOST_BIASES = 1024  # tokens that vLLM's sampler has room for


class VllmModel(VocabularySpeaker):
    """A loaded model. Another thread may call `tokenize` and `constraint` during a step."""

    def __init__(self, options: EngineOptions, progress: Callable[[float], None]) -> None:
        """Loads the model.

        Raises:
            EngineError: MODEL_INVALID, UNSUPPORTED or OUT_OF_MEMORY, with the cause named.
        """
        folder = Path(options.path)
        config = read_json(folder / "config.json")
        text = config.get("text_config") or config
        context = context_size(options, int(text.get("max_position_embeddings") or 0))
        measured = options.gpu and not options.kv_tokens
        cells, share = (0, _free_share()) if measured else (cache_cells(options, context), 0.0)
        self.core = _load(engine_arguments(options, context, cells, share), folder)
        progress(1.0)
        ends = end_tokens(config) | end_tokens(text)
        ends |= end_tokens(read_json(folder / "generation_config.json", optional=True))
        self._vocabulary = TokenVocabulary(folder, self.core.vocabulary, frozenset(ends))
        self.ready = Ready(
            context_tokens=self.core.context_tokens,
            kv_tokens=self.core.cells,
            max_sequences=options.max_sequences,
            vocabulary=self.core.vocabulary,
            chat_template=chat_template(folder),
            bos=self._vocabulary.bos,
            eos=self._vocabulary.eos,
            add_bos=self._vocabulary.add_bos,
        )
        if not eager(options):
            # vLLM compiles its logprob kernels at their first use, separately for one and for several requests. Warming
            # them up here saves the first callers that wait.
            with _explained(f"vLLM cannot compute {options.model_id}"):
                for requests in (1, 2):
                    self._compute(1, requests, logprobs=1)

    def logprob(self, tokens: Sequence[int], values: Sequence[float], count: int) -> TokenLogprob:
        """Returns the logprob of the first token of both lists, with the `count` most likely ones that follow it."""
        name = self._vocabulary.text_of
        named = [(name(token), max(value, LOWEST_LOGPROB)) for token, value in zip(tokens, values, strict=True)]
        return TokenLogprob(*named[0], named[1 : count + 1])

    def sampler(
        self, params: SamplingParams, prompt: Sequence[int], constraint: Constraint | None, logprobs: int | None
    ) -> CoreRequest:
        """Returns the vLLM request for one prompt."""
        check_bias(params, self.core.vocabulary)
        room = self.ready.context_tokens - len(prompt)
        most = min(room, params.max_tokens) if params.max_tokens else room
        grammar = None if constraint is None else ConstraintGrammar(constraint)
        return CoreRequest(vllm_params(params, self._vocabulary.ends, most, logprobs), grammar)

    def free_sampler(self, sampler: CoreRequest) -> None:
        """Aborts the request in vLLM if it still runs."""
        self.core.end(sampler)

    def pace(self, options: EngineOptions) -> Pace:
        """Measures how many tokens a step may have on this machine. On a GPU nothing is measured.

        Raises:
            EngineError: vLLM cannot compute the model on this machine.
        """
        if options.gpu:
            return Pace(options.batch_tokens, options.batch_tokens)
        with _explained(f"vLLM cannot compute {options.model_id}"):
            return step_pace(options, self.ready.context_tokens, self._compute)

    def _compute(self, tokens: int, requests: int = 1, logprobs: int | None = None) -> None:
        for _ in range(requests):
            params = vllm_params(SamplingParams(temperature=0.0), (), 1, logprobs)
            self.core.begin(CoreRequest(params), [0] * tokens)
        while self.core.busy:
            self.core.step()
        self.core.forget_prefixes()


def _free_share() -> float:
    """Returns the share of the GPU's memory for weights, activations and cache together."""
    free, total = torch.cuda.mem_get_info()
    return GPU_SHARE * free / total


def _load(arguments: dict[str, object], folder: Path) -> Core:
    with _explained(f"vLLM cannot load {folder.name}"):
        return Core(configured(arguments))


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Converts vLLM's errors to EngineError. vLLM has no error codes, so the code is guessed from the message."""
    try:
        yield
    except Exception as error:
        reason = _PYDANTIC.sub("", " ".join(str(error).split()))[:_MESSAGE_CHARACTERS] or type(error).__name__
        code = "MODEL_INVALID"
        if is_out_of_memory(error):
            code = "OUT_OF_MEMORY"
        elif isinstance(error, NotImplementedError) or "support" in reason.lower():
            code = "UNSUPPORTED"
        raise EngineError(code, f"{what}: {reason}") from error


def vllm_params(params: SamplingParams, ends: Collection[int], most: int, logprobs: int | None) -> VllmParams:
    """Converts sampling parameters. `ends`: tokens that end a turn; `most`: maximum tokens; `logprobs`: as in Submit.

    Raises:
        EngineError: INVALID_REQUEST if vLLM does not support the parameters.
    """
    if len(params.logit_bias) > MOST_BIASES:
        raise EngineError("INVALID_REQUEST", f"logit_bias has more than {MOST_BIASES} tokens", "logit_bias")
    given: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "seed": _signed(params.seed),
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repeat_penalty,
        "logit_bias": dict(params.logit_bias) or None,
        "max_tokens": most,
        "stop_token_ids": sorted(ends),
        "min_tokens": most if params.ignore_eos else 0,  # no end is sampled before
        "logprobs": logprobs,
        "detokenize": False,
        # A cached prefix changes the rounding of sums, but runs with a seed must be equal.
        "skip_reading_prefix_cache": params.seed is not None,
    }
    try:
        return VllmParams(**given)
    except ValueError as error:
        raise EngineError("INVALID_REQUEST", f"vLLM refuses the request: {error}") from error


def _signed(seed: int | None) -> int | None:
    """Converts a seed to vLLM's signed 64 bits. Avoids -1, which vLLM treats as no seed."""
    if seed is None:
        return None
    signed = seed - 2**64 if seed >= 2**63 else seed
    return -2 if signed == -1 else signed
