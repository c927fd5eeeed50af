"""A safetensors model under vLLM, and its request loop: our tokenizer, vLLM's engine core.

The loop admits requests and sends their output, vLLM builds the batches. vLLM never gets more requests than may run, so
that our fairness decides the order and not arrival alone. vLLM decides which of its requests are in a step, and with
how many tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Tokens
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm import SamplingParams as VllmParams
from vllm.multimodal.inputs import MultiModalFeatureSpec

from services.text.engine.constraint import Constraint
from services.text.engine.kv_cells import cache_cells, context_size
from services.text.engine.messages import Counters, DecoderReady, EngineOptions, Hold, Pixels, TokenLogprob
from services.text.engine.request_loop import BatchLimits, Inbox, RequestLoop
from services.text.engine.runtime import PicturePart, Sampled, check_tokens
from services.text.engine.runtimes.torch.vocabulary import (
    TokenVocabulary,
    VocabularySpeaker,
    chat_template,
    end_tokens,
    read_json,
)
from services.text.engine.runtimes.vllm.arguments import MOST_SCORED_TOKENS, eager, engine_arguments
from services.text.engine.runtimes.vllm.core import ConstraintGrammar, Core, CoreRequest, CoreStep, configured
from services.text.engine.runtimes.vllm.vision import Vision, use_pillow, with_pictures
from services.text.engine.sampling import SamplingParams
from services.text.engine.sequence import Sequence
from services.text.engine.token_budget import step_pace
from services.worker.loop import Pace
from services.worker.messages import EngineError, is_out_of_memory

LOWEST_LOGPROB = -9999.0  # replaces minus infinity, which JSON lacks
# The text around the reason in errors of vLLM's configuration.
_PYDANTIC = re.compile(r"^\d+ validation errors? for \w+ (Value error, )?| \[type=.*$")
_MESSAGE_CHARACTERS = 400  # of vLLM's reason for refusing a model
MOST_BIASES = 1024  # tokens that vLLM's sampler has room for


class VllmModel(VocabularySpeaker):
    """A loaded model. Another thread may call `tokenize`, `see` and `constraint` during a step."""

    def __init__(self, options: EngineOptions, progress: Callable[[float], None]) -> None:
        """Loads the model.

        Raises:
            EngineError: MODEL_INVALID, UNSUPPORTED or OUT_OF_MEMORY, with the cause named.
        """
        folder = Path(options.path)
        config = read_json(folder / "config.json")
        text = config.get("text_config") or config
        context = context_size(options, int(text.get("max_position_embeddings") or 0))
        sees = isinstance(config.get("vision_config"), dict)
        with _explained(f"vLLM cannot load {folder.name}"):
            if sees and use_pillow(config.get("architectures") or ()):
                _check_undivided(options)
            created = configured(engine_arguments(options, context, cache_cells(options, context), sees=sees))
            self.core = Core(created)
            self._vision = Vision(created) if sees else None
        progress(1.0)
        ends = end_tokens(config) | end_tokens(text)
        ends |= end_tokens(read_json(folder / "generation_config.json", optional=True))
        self._vocabulary = TokenVocabulary(folder, self.core.vocabulary, frozenset(ends))
        self.ready = DecoderReady(
            context_tokens=self.core.context_tokens,
            kv_tokens=self.core.cells,
            max_sequences=options.max_sequences,
            vocabulary=self.core.vocabulary,
            chat_template=chat_template(folder),
            bos=self._vocabulary.bos,
            eos=self._vocabulary.eos,
            add_bos=self._vocabulary.add_bos,
            sees=sees,
        )
        if not eager(options):
            # vLLM compiles its logprob kernels at their first use, separately for one and for several requests. Warming
            # them up here saves the first callers that wait.
            with _explained(f"vLLM cannot compute {options.model_id}"):
                for requests in (1, 2):
                    self._compute([0], requests, logprobs=1)
        if self._vision:
            self.core.limit_encoder(self._vision.most_tokens)  # one picture per step, so that running answers go on
            self._try_sight(self._vision, options)

    def see(self, pixels: Pixels) -> tuple[list[int], list[PicturePart]]:
        """Returns the tokens that stand for a picture in a prompt, and its part, scaled for the encoder.

        Raises EngineError: UNSUPPORTED if the model takes no pictures, INVALID_REQUEST if it cannot take this one,
        OVERLOADED if too many wait.
        """
        if self._vision is None:
            raise EngineError("UNSUPPORTED", "the model takes no pictures", pixels.param)
        return self._vision.see(pixels)

    def logprob(self, tokens: list[int], values: list[float], count: int) -> TokenLogprob:
        """Returns the logprob of the first token of both lists, with the `count` most likely ones that follow it."""
        name = self._vocabulary.text_of
        named = [(name(token), max(value, LOWEST_LOGPROB)) for token, value in zip(tokens, values, strict=True)]
        return TokenLogprob(*named[0], named[1 : count + 1])

    def sampler(
        self, params: SamplingParams, prompt: Tokens[int], constraint: Constraint | None, logprobs: int | None
    ) -> CoreRequest:
        """Returns the vLLM request for one prompt."""
        check_tokens(params, self.core.vocabulary)
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
            return step_pace(options, self.ready.context_tokens, lambda tokens: self._compute([0] * tokens))

    def _compute(
        self,
        prompt: list[int],
        requests: int = 1,
        logprobs: int | None = None,
        pictures: list[MultiModalFeatureSpec] | None = None,
    ) -> None:
        for _ in range(requests):
            params = vllm_params(SamplingParams(temperature=0.0), (), 1, logprobs)
            self.core.begin(CoreRequest(params), prompt, pictures=pictures)
        while self.core.busy:
            self.core.step()
        self.core.forget_prefixes()

    def _try_sight(self, vision: Vision, options: EngineOptions) -> None:
        """Computes a prompt with a picture: an image processor that does not fit the encoder fails here."""
        with _explained(f"vLLM cannot compute {options.model_id} with a picture"):
            tokens, parts = vision.see(Pixels(width=1, height=1, pixels=bytes(3)))
            if len(tokens) < self.ready.context_tokens - 1:
                prompt, pictures = with_pictures([*tokens, 0], parts, None)
                self._compute(prompt, pictures=pictures)


def _check_undivided(options: EngineOptions) -> None:
    """Raises NotImplementedError for a division: its other processes would need torchvision."""
    if options.tensor_parallel * options.pipeline_parallel > 1:
        message = "without torchvision, the runtime does not divide models that take pictures"
        raise NotImplementedError(f"{message} (tensor_parallel, pipeline_parallel)")


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
    bias, stops = dict(params.logit_bias), {*ends, *params.stop_token_ids}
    if params.ignore_eos and params.stop_token_ids:  # vLLM's `min_tokens` would bar both
        bias, stops = {**bias, **dict.fromkeys(ends, -100.0)}, set(params.stop_token_ids)
    endless = params.ignore_eos and not params.stop_token_ids
    given: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "seed": _signed(params.seed),
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repeat_penalty,
        "logit_bias": bias or None,
        "max_tokens": most,
        "stop_token_ids": sorted(stops),
        "min_tokens": most if endless else min(params.min_tokens, most),  # no end is sampled before
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
        most = MOST_SCORED_TOKENS if any(each.scoring for each in self._running) else self._pace.limit
        self._core.limit(max(min(most, self._pace.limit), len(self._running) + 1))
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
            if sequence.scored:
                asked.params.prompt_logprobs, asked.params.skip_reading_prefix_cache = sequence.logprobs, True
            prompt, pictures = with_pictures(
                sequence.tokens[: sequence.prompt_tokens], sequence.pictures, sequence.client
            )
            self._core.begin(asked, prompt, sequence.client, pictures)
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
            if (scores := output.new_prompt_logprobs_tensors) is not None and sequence.scoring:
                rows = zip(scores.logprob_token_ids.tolist(), scores.logprobs.tolist(), strict=True)
                self._score(sequence, 1, [self._model.logprob(*row, sequence.logprobs or 0) for row in rows])
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
