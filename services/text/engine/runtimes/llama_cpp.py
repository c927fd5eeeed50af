"""The `llama_cpp` runtime: GGUF models through llama-cpp-python's low-level API.

All requests share one context; each has its own llama.cpp sequence id. The key-value cache has one of two layouts:

- unified: all sequences take their cells from one pool, and sharing a prefix only marks cells with one more sequence
  id. Attention reads every cell in use, including those of other sequences.
- streams: each sequence has its own full context, so attention reads only its own cells (with 32 requests a step took
  72 ms instead of 106). But prefixes must be copied. llama.cpp computes sequences in one graph only if their ids are
  consecutive: an unordered batch took three times as long.

On the processor the cache has streams, whose memory is that of the cells in use (llama_cpp_streams.py); the batch
loop's ledger bounds these cells. A GPU reserves all memory at the start: streams are used there only if `kv_tokens`
grants every sequence a full context. The cache is unified for recurrent models with a prefix cache, because copying a
whole stream would cost more than their few keys save, and for contexts over 32,768 tokens, because llama.cpp keeps 52
bytes for every cell of a stream, used or not.

Shapes: logits are float32 [outputs, vocabulary], one row per span with a sampler, in the order of the batch. A
grammar's mask is int32 [ceil(vocabulary / 32)], one bit per token. It is applied to the logits in place, where
llama.cpp's samplers and the greedy choice both read them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from services.text.engine.constraint import MARKS, Constraint, GrammarCompiler, Vocabulary, no_token
from services.text.engine.kv_cells import BLOCK, cache_cells, context_size, has_streams, stream_count
from services.text.engine.messages import DecoderReady, EngineOptions, Pixels, TokenLogprob
from services.text.engine.runtime import (
    Outcomes,
    OutOfCells,
    PicturePart,
    Sampled,
    TokenSpan,
    check_tokens,
    kept_states,
)
from services.text.engine.runtimes import llama_cpp_streams
from services.text.engine.runtimes.llama_cpp_model import MICRO_BATCH, last_error, load_model
from services.text.engine.runtimes.llama_cpp_picture_spans import Shifts, decode_pictures, picture_encoder
from services.text.engine.runtimes.llama_cpp_sampling import LlamaSampler, sampler_chain
from services.text.engine.runtimes.llama_cpp_streams import StreamMemory, gap_fillers
from services.text.engine.sampling import SamplingParams
from services.worker.messages import EngineError

PREFIX_ENTRIES = 64  # sequence ids for the prefix cache; llama.cpp has 256 in all
LOWEST_LOGPROB = -9999.0  # replaces minus infinity, which JSON lacks
_NO_SPACE = 1  # llama_decode: no cells for the batch, nothing changed


class LlamaEngine:
    """A GGUF model in a llama.cpp context. Only `tokenize` and `constraint` are thread-safe."""

    def __init__(self, options: EngineOptions, progress: Callable[[float], None]) -> None:
        """Loads the model.

        Raises:
            EngineError: MODEL_INVALID if llama.cpp cannot read the file, OUT_OF_MEMORY if the context does not fit.
        """
        self._model = load_model(options, progress)
        self._pictures: Any = picture_encoder(options, self._model)
        self._shifts = Shifts()
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(self._vocab)
        recurrent = llama_cpp.llama_model_is_recurrent(self._model) or llama_cpp.llama_model_is_hybrid(self._model)
        self.reuses_prefixes = not recurrent
        self.reuses_states = recurrent and options.prefix_cache
        self._context_tokens = context_size(options, llama_cpp.llama_model_n_ctx_train(self._model))
        cells = cache_cells(options, self._context_tokens)
        possible = has_streams(options, self._context_tokens, recurrent=bool(recurrent))
        self._streams = self._new_streams(options) if possible else None
        if self._streams:
            self._context = self._streams.context
        else:
            self.shares_cells = self.reuses_states or cells < self._context_tokens * options.max_sequences
            if self.reuses_states:
                extra = kept_states(options.max_sequences)
            else:
                extra = PREFIX_ENTRIES if self.shares_cells and self.reuses_prefixes else 0
            self.sequence_ids = options.max_sequences + extra
            self._context = self._new_context(options, cells)
        if not self._context:
            message = f"no memory for a key-value cache of {cells} tokens (ALLM_KV_TOKENS): {last_error()}"
            raise EngineError("OUT_OF_MEMORY", message)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(options.batch_tokens, 0, 1)
        self._room = options.batch_tokens
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._grammars: GrammarCompiler | None = None
        self._ends = np.array(
            [t for t in range(self._n_vocab) if llama_cpp.llama_vocab_is_eog(self._vocab, t)], dtype=np.int64
        )
        self._end_set = frozenset(self._ends.tolist())
        self.ready = self._describe(options, cells)
        self._warm_up()

    def tokenize(self, text: str) -> list[int]:
        """Returns the token ids of `text`, with special tokens, and with BOS if the model adds it."""
        data = text.encode()
        room = len(data) + 8
        tokens = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self._vocab, data, len(data), tokens, room, True, True)
        if count < 0:
            raise EngineError("INVALID_REQUEST", f"the prompt of {len(data)} bytes cannot be tokenized")
        return list(tokens[:count])

    def constraint(self, grammar: str) -> Constraint:
        """Returns a grammar's state. The first call reads the whole vocabulary, which takes some tenths of a second."""
        if self._grammars is None:
            self._grammars = GrammarCompiler(self._vocabulary())
        return self._grammars.compile(grammar)

    def see(self, pixels: Pixels) -> tuple[list[int], list[PicturePart]]:
        """Returns a picture's tokens and parts. Raises EngineError (INVALID_REQUEST) for a size that is impossible."""
        seen: tuple[list[int], list[PicturePart]] = self._pictures.see(pixels)
        return seen

    def encode(self, part: PicturePart) -> None:
        """Computes the embeddings of a part."""
        self._pictures.encode(part)

    def piece(self, token: int, special: bool) -> bytes:
        """Returns the bytes of a token: empty for ends, and for control tokens unless `special`."""
        return b"" if special and token in self._end_set else self._text_of(token, special)

    def name(self, token: int) -> bytes:
        """Returns the bytes of a token; ends and control tokens by name."""
        return self._text_of(token, special=True)

    def is_end(self, token: int) -> bool:
        """Returns True if the token ends the turn (any end-of-generation token of the model)."""
        return token in self._end_set

    def sampler(
        self, params: SamplingParams, prompt: Sequence[int], constraint: Constraint | None, logprobs: int | None
    ) -> LlamaSampler:
        """Returns the sampling state of one request. Greedy sampling needs no llama.cpp chain."""
        check_tokens(params, self._n_vocab)
        chain = None if params.greedy else sampler_chain(params, prompt, self._n_vocab, self.ready.context_tokens)
        early = np.union1d(self._ends, np.array(params.stop_token_ids, np.int64))
        return LlamaSampler(chain, params.ignore_eos, constraint, logprobs, params.min_tokens, early)

    def free_sampler(self, sampler: LlamaSampler) -> None:
        """Frees the sampler chain."""
        if sampler.chain is not None:
            llama_cpp.llama_sampler_free(sampler.chain)
            sampler.chain = None

    def step(self, spans: Sequence[TokenSpan]) -> list[Outcomes]:
        """Computes all spans, those of pictures first, and samples the next tokens of each span with a sampler."""
        shown = [span for span in spans if span.part]
        if not shown:
            return self._compute(spans)
        try:
            self._show(shown)
            words = [span for span in spans if not span.part]
            sampled = iter(self._compute(words) if words else [])
        except OutOfCells:
            for span in shown:
                self.drop(span.sequence, span.start)
            raise
        return [[] if span.part else next(sampled) for span in spans]

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Marks the first `tokens` cells of `source` for `target` as well; with streams, copies them.

        A recurrent state is marked like a cell: llama.cpp copies it when one of the two sequences continues.
        """
        self._shifts.copy(source, target, tokens)
        if self.shares_cells:
            end = self._shifts.position(source, tokens)
            llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, end)
        else:  # llama.cpp copies only whole streams
            if self._streams:
                self._streams.copy(source, target, tokens)
            llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            self.drop(target, tokens)

    def drop(self, sequence: int, start: int = 0) -> None:
        """Removes the sequence's mark from its cells. A cell without marks is free."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, self._shifts.position(sequence, start), -1)
        self._shifts.drop(sequence, start)
        if self._streams:
            self._streams.free(sequence, start, BLOCK)

    # --- a step

    def _compute(self, spans: Sequence[TokenSpan]) -> list[Outcomes]:
        """Computes spans of the vocabulary in one llama_decode, and samples."""
        fillers = [] if self.shares_cells else gap_fillers(spans, self._end, self._context_tokens, self._room)
        if fillers:
            spans = sorted((*spans, *fillers), key=lambda span: span.sequence)
        self._fill(spans)
        result = llama_cpp.llama_decode(self._context, self._batch)
        for filler in fillers:
            llama_cpp.llama_memory_seq_rm(self._memory, filler.sequence, filler.start, -1)
        self._check(result, spans)
        # An accelerator is still computing; the masks are filled meanwhile.
        masks = [self._mask(span.sampler.constraint) if span.sampler else None for span in spans]
        sampled = self._sample(spans, masks)
        return [one for span, one in zip(spans, sampled, strict=True) if span not in fillers] if fillers else sampled

    def _show(self, spans: Sequence[TokenSpan]) -> None:
        """Computes spans of pictures."""
        for result, batch in decode_pictures(self._context, spans):
            self._check(result, batch)
            self._shifts.add(batch)
        llama_cpp.llama_synchronize(self._context)

    def _check(self, result: int, spans: Sequence[TokenSpan]) -> None:
        """Checks the result of llama_decode, and records that the cells of the spans are used."""
        if result == _NO_SPACE:
            raise OutOfCells
        if result != 0:
            raise RuntimeError(f"llama_decode failed with {result}")
        if self._streams:
            for span in spans:
                self._streams.use(span.sequence, span.start + len(span.tokens))

    def _fill(self, spans: Sequence[TokenSpan]) -> None:
        batch, at = self._batch, 0
        for span in spans:
            for offset, token in enumerate(span.tokens):
                batch.token[at] = token
                batch.pos[at] = span.start - span.shift + offset
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = span.sequence
                batch.logits[at] = 0
                at += 1
            for row in range(at - span.rows, at):
                batch.logits[row] = 1
        batch.n_tokens = at

    def _end(self, sequence: int) -> int:
        """Returns the position after the last token of a sequence."""
        end: int = llama_cpp.llama_memory_seq_pos_max(self._memory, sequence) + 1
        return end

    def _mask(self, constraint: Constraint | None) -> NDArray[np.int32] | None:
        """Returns the mask of the tokens that a grammar allows next."""
        if constraint is None:
            return None
        mask = np.zeros((self._n_vocab + 31) // 32, np.int32)
        constraint.fill(mask.ctypes.data, mask.nbytes)
        return mask

    def _sample(self, spans: Sequence[TokenSpan], masks: Sequence[NDArray[np.int32] | None]) -> list[Outcomes]:
        """Samples the next tokens of the spans. `masks`: of the first token of each."""
        wanted = sum(span.rows for span in spans)
        if not wanted:
            llama_cpp.llama_synchronize(self._context)
            return [[] for _ in spans]
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), (wanted, self._n_vocab))
        sampled: list[Outcomes] = []
        row, end = 0, 0
        for span, mask in zip(spans, masks, strict=True):
            end += len(span.tokens)
            if scoring := span.scoring:
                found = [self._logprob(logits[row + at], each, scoring.top) for at, each in enumerate(scoring.tokens)]
                scoring.found.extend(found)
            row += span.rows
            outcomes: Outcomes = []
            if span.sampler is not None:
                first = 1 + span.drafts
                outcomes.append(self._choose(span.sampler, logits[row - first], mask, end - first))
            while span.sampler is not None and span.goes_on(len(outcomes) - 1, outcomes[-1]):
                place, following = len(outcomes) - first, self._mask(span.sampler.constraint)
                outcomes.append(self._choose(span.sampler, logits[row + place], following, end + place))
            sampled.append(outcomes)
        return sampled

    def _choose(
        self, sampler: LlamaSampler, logits: NDArray[np.float32], mask: NDArray[np.int32] | None, last: int
    ) -> Sampled | EngineError:
        """Samples the next token from logits [vocabulary], which belong to token `last` of the batch."""
        raw = None if sampler.logprobs is None else logits.copy()
        if mask is not None:
            allowed = np.unpackbits(mask.view(np.uint8), count=self._n_vocab, bitorder="little")
            if not allowed.any():
                return no_token()
            logits[allowed == 0] = -np.inf
        elif sampler.min_tokens > 0:
            logits[sampler.early] = -np.inf
            sampler.min_tokens -= 1
        elif sampler.ignore_end:
            logits[self._ends] = -np.inf
        if sampler.chain is None:
            token = int(logits.argmax())
        else:
            token = llama_cpp.llama_sampler_sample(sampler.chain, self._context, last)
        logprob = None if raw is None else self._logprob(raw, token, sampler.logprobs or 0)
        return sampler.constraint.accept(token, logprob) if sampler.constraint else Sampled(token, logprob)

    def _logprob(self, logits: NDArray[np.float32], token: int, count: int) -> TokenLogprob:
        """Returns the log-softmax of a row [vocabulary] at `token` and at the `count` highest logits."""
        highest = logits.max()
        total = highest + np.log(np.exp(logits - highest).sum())
        count = min(count, self._n_vocab)
        top = np.argpartition(logits, -count)[-count:] if count else np.empty(0, np.int64)
        top = top[np.lexsort((top, -logits[top]))]

        def of(chosen: int) -> tuple[bytes, float]:
            return self.name(chosen), max(float(logits[chosen] - total), LOWEST_LOGPROB)

        return TokenLogprob(*of(token), [of(chosen) for chosen in top.tolist()])

    # --- loading

    def _new_streams(self, options: EngineOptions) -> StreamMemory | None:
        """Creates a context with a stream for each sequence id; None if the system or llama.cpp does not allow it."""
        if not llama_cpp_streams.supported():
            return None
        self.shares_cells = False
        self.sequence_ids = stream_count(options)
        cells = self._context_tokens * self.sequence_ids
        streams = StreamMemory(lambda: self._new_context(options, cells), self.sequence_ids)
        return streams if streams.context else None

    def _new_context(self, options: EngineOptions, cells: int) -> Any:
        """Returns a context with a cache of `cells`, or null."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = options.batch_tokens
        params.n_ubatch = min(MICRO_BATCH, options.batch_tokens)
        params.n_seq_max = self.sequence_ids
        params.n_threads = params.n_threads_batch = options.threads
        params.kv_unified = self.shares_cells
        # Without it llama.cpp keeps values by channel, and the first token of a stream takes a page for each channel:
        # with 32 short requests 1,142 MB instead of 479. StreamMemory knows only rows.
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.no_perf = True
        return llama_cpp.llama_init_from_model(self._model, params)

    def _describe(self, options: EngineOptions, cells: int) -> DecoderReady:
        template = llama_cpp.llama_model_chat_template(self._model, None)
        whole = self._context_tokens * options.max_sequences
        return DecoderReady(
            context_tokens=self._context_tokens,
            kv_tokens=cells if self._streams else min(llama_cpp.llama_n_ctx(self._context), whole),
            max_sequences=options.max_sequences,
            vocabulary=self._n_vocab,
            chat_template=template.decode(errors="replace") if template else "",
            bos=self._special(llama_cpp.llama_vocab_bos(self._vocab)),
            eos=self._special(llama_cpp.llama_vocab_eos(self._vocab)),
            add_bos=llama_cpp.llama_vocab_get_add_bos(self._vocab),
            infill=self._infill(),
            sees=self._pictures is not None,
        )

    def _infill(self) -> tuple[int, int, int] | None:
        """Returns the tokens that the header names for filling in, or that llama.cpp knows by their names."""
        names = ("pre", "suf", "mid")
        first, second, last = (int(getattr(llama_cpp, f"llama_vocab_fim_{name}")(self._vocab)) for name in names)
        return (first, second, last) if min(first, second, last) >= 0 else None

    def _special(self, token: int) -> str:
        return self._text_of(token, special=True).decode(errors="replace") if token >= 0 else ""

    def _vocabulary(self) -> Vocabulary:
        tokens = [self._read_text(token, special=True) for token in range(self._n_vocab)]
        control = [token for token in range(self._n_vocab) if self._is_markup(token, tokens[token])]
        return Vocabulary(tokens, control, self._ends.tolist(), self.tokenize)

    def _is_markup(self, token: int, text: bytes) -> bool:
        """Returns True if a token is markup and not text. Grammars match markup only by its name."""
        attributes = llama_cpp.llama_vocab_get_attr(self._vocab, token)
        if attributes & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED:
            return text.startswith(b"<|") and text.endswith(b"|>")
        control = attributes & (llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN)
        return bool(control) and not MARKS.fullmatch(text)

    def _text_of(self, token: int, special: bool) -> bytes:
        """Returns a token's bytes; empty for control tokens unless `special`."""
        found = self._pieces.get((token, special))
        if found is None:
            found = self._pieces[token, special] = self._read_text(token, special)
        return found

    def _read_text(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        length = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        if length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:length]

    def _warm_up(self) -> None:
        """Computes one token, so that the first request does not pay for page faults and allocations."""
        self.step([TokenSpan(0, 0, [max(0, llama_cpp.llama_vocab_bos(self._vocab))], LlamaSampler())])
        self.drop(0)
