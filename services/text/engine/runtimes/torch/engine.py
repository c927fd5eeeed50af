"""The `torch` runtime: safetensors models by transformers' definitions, with our own paged key-value cache.

A step packs the tokens of all its spans (decoding tokens and chunks of prompts) into one row and runs the definition
once. Sequences with a common prefix share pages. docs/torch-runtime.md gives the reasons for this design.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from services.text.engine.constraint import Constraint, no_token
from services.text.engine.kv_cells import BLOCK, cache_cells, context_size
from services.text.engine.messages import DecoderReady, EngineOptions, Pixels, TokenLogprob
from services.text.engine.runtime import (
    Outcomes,
    PicturePart,
    Sampled,
    Scoring,
    TokenSpan,
    check_tokens,
    kept_states,
)
from services.text.engine.runtimes.torch.attention import RESERVED_PAGES, PageTables
from services.text.engine.runtimes.torch.executor import Executor, RankGroup, rank_device
from services.text.engine.runtimes.torch.packing import make_batch
from services.text.engine.runtimes.torch.parallel import Ranks, check_divisible
from services.text.engine.runtimes.torch.sampling import BatchSampler, Chosen, Sampler, new_sampler
from services.text.engine.runtimes.torch.vocabulary import (
    TokenVocabulary,
    VocabularySpeaker,
    chat_template,
    end_tokens,
    read_json,
)
from services.text.engine.runtimes.torch.weights import read_config, sees
from services.text.engine.sampling import SamplingParams
from services.worker.messages import EngineError, error_line

if TYPE_CHECKING:
    from services.text.engine.runtimes.torch.vision import Vision

PREFIX_ENTRIES = 64  # sequence ids for the prefix cache


class SafetensorsEngine(VocabularySpeaker):
    """A safetensors model. Only `tokenize` and `constraint` are thread-safe."""

    shares_cells = True

    def __init__(self, options: EngineOptions, progress: Callable[[float], None]) -> None:
        """Loads the model.

        Raises:
            EngineError: MODEL_INVALID, UNSUPPORTED or OUT_OF_MEMORY, with the cause named.
        """
        torch.set_num_threads(options.threads)
        folder = Path(options.path)
        config = read_config(folder)
        text = config.get_text_config()
        self._vocab_size = int(text.vocab_size)
        ends = end_tokens(text.to_dict()) | end_tokens(read_json(folder / "generation_config.json", optional=True))
        self._vocabulary = TokenVocabulary(folder, self._vocab_size, frozenset(ends))
        device = rank_device(options, 0)
        if sees(config) and options.tensor_parallel > 1:
            message = "the runtime torch does not divide models that take pictures among GPUs (ALLM_TENSOR_PARALLEL)"
            raise EngineError("UNSUPPORTED", message)
        check_divisible(text, options.tensor_parallel)
        self._others = RankGroup(options, device) if options.tensor_parallel > 1 else None
        ranks = self._others.ranks if self._others else Ranks(0, 1)
        try:
            self.executor = Executor(folder, config, options.dtype, device, ranks, progress)
        except EngineError:
            self.close()
            raise
        context = context_size(options, int(getattr(text, "max_position_embeddings", 0) or 0))
        self.reuses_prefixes = not self.executor.is_recurrent
        self.reuses_states = self.executor.is_recurrent and options.prefix_cache
        kept = kept_states(options.max_sequences) if self.reuses_states else 0
        self.executor.allocate_states(options.max_sequences, kept)
        cells = cache_cells(options, context)  # as in the memory estimate, also on a GPU
        self.sequence_ids = options.max_sequences + (PREFIX_ENTRIES if self.reuses_prefixes else kept)
        # Each running sequence and each kept state has an open page.
        pages = -(-cells // BLOCK) + options.max_sequences + kept + RESERVED_PAGES
        if self._others:
            self._others.allocate(pages, options.max_sequences)
        self.executor.allocate(pages, options.max_sequences)
        self._vision = self._sight(folder, config)
        self._lengths = [0] * self.sequence_ids  # computed tokens of each sequence
        self._tables = PageTables(pages, self.sequence_ids, -(-context // BLOCK) + 1)
        # Metal has no 64-bit floats, which sampling needs, and shares the host's memory.
        self._sampling_device = torch.device("cpu") if device.type == "mps" else device
        self._sampler = BatchSampler(self._vocab_size, sorted(self._vocabulary.ends), self._sampling_device)
        self.ready = DecoderReady(
            context_tokens=context,
            kv_tokens=cells,
            max_sequences=options.max_sequences,
            vocabulary=self._vocab_size,
            chat_template=chat_template(folder),
            bos=self._vocabulary.bos,
            eos=self._vocabulary.eos,
            add_bos=self._vocabulary.add_bos,
            infill=self._vocabulary.infill,
            sees=self._vision is not None,
            picture_margins=self._vision.margins if self._vision else ("", ""),
        )
        self._warm_up()

    def see(self, pixels: Pixels) -> tuple[list[int], list[PicturePart]]:
        """Returns the tokens that stand for a picture in a prompt, and its parts, scaled for the encoder.

        Raises EngineError: UNSUPPORTED if the model takes no pictures, INVALID_REQUEST if it cannot take this one.
        """
        if self._vision is None:
            raise EngineError("UNSUPPORTED", "the model takes no pictures", pixels.param)
        return self._vision.see(pixels)

    def encode(self, part: PicturePart) -> None:
        """Computes the embeddings of a part. Raises EngineError OUT_OF_MEMORY."""
        if self._vision is None:
            raise EngineError("UNSUPPORTED", "the model takes no pictures")
        try:
            part.embeddings = self._vision.encode(part.source)
        except (MemoryError, torch.OutOfMemoryError) as error:
            message = f"no memory to encode a picture of {part.count} tokens: {error_line(error)}"
            raise EngineError("OUT_OF_MEMORY", message) from error

    def sampler(
        self, params: SamplingParams, prompt: Sequence[int], constraint: Constraint | None, logprobs: int | None
    ) -> Sampler:
        """Returns the sampling state of one request."""
        check_tokens(params, self._vocab_size)
        return new_sampler(params, prompt, constraint, logprobs)

    def free_sampler(self, sampler: Sampler) -> None:
        """Frees a sampler's rows of the penalty tables."""
        self._sampler.free(sampler)

    @torch.inference_mode()
    def step(self, spans: Sequence[TokenSpan]) -> list[Outcomes]:
        """Computes all spans in one pass through the model and samples the next tokens of each span with a sampler."""
        copies = self._tables.extend([(span.sequence, span.start, len(span.tokens)) for span in spans])
        batch, order = make_batch(spans, self._tables.rows, copies)
        if self._others:
            self._others.run(batch)
        logits = self.executor.run(batch)
        for span in spans:
            self._lengths[span.sequence] = span.start + len(span.tokens)
        return self._sample(spans, order, logits)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Shares the pages of the first `tokens` of `source` with `target`, and copies its recurrent state.

        Raises ValueError if the model is recurrent and the state is not exactly `tokens` long.
        """
        if self.executor.is_recurrent:
            if tokens != self._lengths[source]:
                raise ValueError(f"a recurrent state after {self._lengths[source]} tokens cannot be shared in part")
            self.executor.copy_state(source, target)
        self._tables.share(source, target, tokens)
        self._lengths[target] = tokens

    def drop(self, sequence: int, start: int = 0) -> None:
        """Frees the pages from position `start` on. Raises ValueError if that would cut a recurrent state."""
        if start and self.executor.is_recurrent:
            raise ValueError("a recurrent state cannot be cut")
        self._tables.cut(sequence, start)
        self._lengths[sequence] = min(start, self._lengths[sequence])

    def close(self) -> None:
        """Stops the other ranks of a divided model. They also stop when the worker process ends."""
        if self._others:
            self._others.close()

    # --- a step

    def _sample(self, spans: Sequence[TokenSpan], order: list[int], logits: Tensor) -> list[Outcomes]:
        """Samples the next tokens of the spans in `order`, whose rows `logits` [rows, vocabulary] has."""
        outcomes: list[Outcomes] = [[] for _ in spans]
        ends = dict(zip(order, itertools.accumulate(spans[number].rows for number in order), strict=True))
        for number in order:
            if (scoring := spans[number].scoring) and scoring.tokens:
                self._score(scoring, logits[ends[number] - spans[number].rows :])
        asked, place = [number for number in order if spans[number].sampler is not None], 0
        first = {number: ends[number] - 1 - spans[number].drafts for number in asked}
        while asked:
            rows = logits if len(asked) == len(logits) else logits[[first[number] + place for number in asked]]
            samplers: list[Sampler] = [spans[number].sampler for number in asked]  # type: ignore[misc]
            for number, outcome in zip(asked, self._choose(rows, samplers), strict=True):
                outcomes[number].append(outcome)
            asked = [number for number in asked if spans[number].goes_on(place, outcomes[number][-1])]
            place += 1
        return outcomes

    def _score(self, scoring: Scoring, logits: Tensor) -> None:
        """Finds the logprobs of a prompt's tokens, whose rows `logits` [at least tokens, vocabulary] begins with."""
        for chosen in self._sampler.score(logits.to(self._sampling_device), scoring.tokens, scoring.top):
            scoring.found.append(self._logprob(chosen))

    def _logprob(self, chosen: Chosen) -> TokenLogprob:
        return TokenLogprob(
            self.name(chosen.token), chosen.logprob, [(self.name(token), value) for token, value in chosen.top]
        )

    def _choose(self, logits: Tensor, samplers: list[Sampler]) -> list[Sampled | EngineError]:
        """Samples the next tokens from logits [rows, vocabulary]. A GPU still computes while masks are filled."""
        constrained = [sampler.constraint for sampler in samplers if sampler.constraint is not None]
        masks = torch.zeros(len(constrained), (self._vocab_size + 31) // 32, dtype=torch.int32)
        for mask, constraint in zip(masks, constrained, strict=True):
            constraint.fill(mask.data_ptr(), mask.nbytes)
        impossible = iter((~masks.any(1)).tolist())
        where = self._sampling_device
        chosen = self._sampler.sample(logits.to(where), samplers, masks.to(where) if constrained else None)
        return [
            self._outcome(each, sampler, sampler.constraint is not None and next(impossible))
            for each, sampler in zip(chosen, samplers, strict=True)
        ]

    def _outcome(self, chosen: Chosen, sampler: Sampler, impossible: bool) -> Sampled | EngineError:
        if impossible:
            return no_token()
        logprob = None if sampler.logprobs is None else self._logprob(chosen)
        return (
            sampler.constraint.accept(chosen.token, logprob) if sampler.constraint else Sampled(chosen.token, logprob)
        )

    # --- loading

    def _sight(self, folder: Path, config: PreTrainedConfig) -> Vision | None:
        """Returns how the model sees; None for a model of text. Raises EngineError MODEL_INVALID."""
        if not sees(config):
            return None
        from services.text.engine.runtimes.torch.vision_families import vision_of  # noqa: PLC0415 (needs Pillow)

        return vision_of(folder, self.executor.model, self._vocabulary)

    def _warm_up(self) -> None:
        """Computes a prompt and a token, so that the first request does not pay for page faults."""
        sampler = new_sampler(SamplingParams(temperature=0), [], None, None)
        self.step([TokenSpan(0, 0, [0] * BLOCK, None)])
        self.step([TokenSpan(0, BLOCK, [0], sampler)])
        self.drop(0)
        if self._vision is not None:
            for part in self.see(Pixels(width=64, height=64, pixels=bytes(64 * 64 * 3), detail="low"))[1]:
                self.encode(part)
