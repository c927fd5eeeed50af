"""The `llama_cpp` runtime for embedding models and rerankers: GGUF through llama-cpp-python's low-level API.

Every input of a batch is a separate sequence. llama.cpp pools it as the file's header says, or by the mean over its
tokens if the header says nothing. llama.cpp pools only within one graph, so a graph has room for a whole batch and for
the longest input.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import llama_cpp
import numpy as np

from services.text.engine.embedding_loop import Tokens, Vectors
from services.text.engine.messages import EncoderReady, EngineOptions
from services.text.engine.runtimes.llama_cpp_model import last_error, load_model
from services.worker.messages import EngineError

BATCH_INPUTS = 256  # llama.cpp's number of sequence ids
DEFAULT_LIMIT = 8192  # maximum tokens of an input with `context_tokens=0`; a graph has room for all of them


class LlamaEncoder:
    """An embedding model in a llama.cpp context. Only `tokenize` is thread-safe."""

    normalised = True  # GGUF headers do not say; llama.cpp's own server does the same
    poolings: frozenset[int] = frozenset(
        (
            llama_cpp.LLAMA_POOLING_TYPE_MEAN,
            llama_cpp.LLAMA_POOLING_TYPE_CLS,
            llama_cpp.LLAMA_POOLING_TYPE_LAST,
        )
    )
    purpose = "embed"

    def __init__(self, options: EngineOptions, progress: Callable[[float], None]) -> None:
        """Loads the model.

        Raises:
            EngineError: MODEL_INVALID if llama.cpp cannot read the file, UNSUPPORTED if the model does not embed,
                OUT_OF_MEMORY if the context does not fit.
        """
        self._model = load_model(options, progress)
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        trained = llama_cpp.llama_model_n_ctx_train(self._model)
        limit = min(trained, options.context_tokens or DEFAULT_LIMIT)
        self.batch_inputs = min(BATCH_INPUTS, limit, options.batch_tokens)  # llama.cpp aborts if tokens are fewer
        self._context = self._new_context(options, limit)
        self._room = llama_cpp.llama_n_batch(self._context)  # tokens of a graph
        self._batch = llama_cpp.llama_batch_init(self._room, 0, 1)
        self.ready = EncoderReady(
            context_tokens=limit,
            dimensions=self._dimensions(),
            vocabulary=llama_cpp.llama_vocab_n_tokens(self._vocab),
        )
        self.encode([np.zeros(1, np.int32)])  # the first batch pays for page faults and allocations

    def _dimensions(self) -> int:
        """Returns the length of the pooled vectors."""
        return int(llama_cpp.llama_model_n_embd_out(self._model))

    def tokenize(self, text: str) -> Tokens:
        """Returns the token ids of an input, with the special tokens around it."""
        return self._ids(text, around=True)

    def _ids(self, text: str, *, around: bool) -> Tokens:
        """Tokenizes a text, with or without special tokens around it."""
        data = text.encode()
        room = len(data) + 8
        tokens = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self._vocab, data, len(data), tokens, room, around, True)
        if count < 0:
            raise EngineError("INVALID_REQUEST", f"an input of {len(data)} bytes cannot be tokenized", "input")
        return np.ctypeslib.as_array(tokens)[:count].astype(np.int32)

    def encode(self, inputs: Sequence[Tokens]) -> Vectors:
        """Returns the pooled vectors [inputs, dimensions]."""
        vectors = np.empty((len(inputs), self.ready.dimensions), np.float32)
        first = 0
        while first < len(inputs):
            last, tokens = first, 0
            while last < len(inputs) and tokens + len(inputs[last]) <= self._room:
                tokens += len(inputs[last])
                last += 1
            self._compute(inputs[first:last], vectors[first:last])
            first = last
        return vectors

    def _compute(self, inputs: Sequence[Tokens], vectors: Vectors) -> None:
        """Fills in the vectors [inputs, dimensions] of inputs that fit into one graph."""
        self._fill(inputs)
        memory = llama_cpp.llama_get_memory(self._context)
        if memory:  # decoders only: clears the previous batch
            llama_cpp.llama_memory_clear(memory, True)
        result = llama_cpp.llama_decode(self._context, self._batch)  # also runs encoders, which have no memory
        if result != 0:
            raise RuntimeError(f"llama_decode failed with {result}")
        for sequence in range(len(inputs)):
            pooled = llama_cpp.llama_get_embeddings_seq(self._context, sequence)
            vectors[sequence] = self._finished(np.ctypeslib.as_array(pooled, (self._dimensions(),)))

    def _finished(self, pooled: Vectors) -> Vectors:
        """Converts what llama.cpp has pooled for one input [dimensions] to its vector."""
        return pooled

    def _fill(self, inputs: Sequence[Tokens]) -> None:
        batch, at = self._batch, 0
        for sequence, tokens in enumerate(inputs):
            for position, token in enumerate(tokens.tolist()):
                batch.token[at] = token
                batch.pos[at] = position
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = sequence
                batch.logits[at] = 1
                at += 1
        batch.n_tokens = at

    def _new_context(self, options: EngineOptions, limit: int) -> Any:
        created = self._create(options, limit, llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED)
        pooling = llama_cpp.llama_pooling_type(created)
        if pooling == llama_cpp.LLAMA_POOLING_TYPE_NONE and llama_cpp.LLAMA_POOLING_TYPE_MEAN in self.poolings:
            llama_cpp.llama_free(created)
            return self._create(options, limit, llama_cpp.LLAMA_POOLING_TYPE_MEAN)
        if pooling not in self.poolings:
            message = f"{options.model_id} does not {self.purpose}: its pooling_type is {pooling}"
            raise EngineError("UNSUPPORTED", message)
        return created

    def _create(self, options: EngineOptions, limit: int, pooling: int) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.embeddings = True
        params.pooling_type = pooling
        params.n_ctx = limit  # cells of a decoder's cache
        params.n_batch = params.n_ubatch = max(limit, options.batch_tokens)
        params.n_seq_max = self.batch_inputs
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = options.threads
        params.no_perf = True
        created = llama_cpp.llama_init_from_model(self._model, params)
        if not created:
            message = f"no memory for inputs of {limit} tokens (ALLM_CONTEXT_TOKENS): {last_error()}"
            raise EngineError("OUT_OF_MEMORY", message)
        return created


class LlamaReranker(LlamaEncoder):
    """A reranker in a llama.cpp context: its pooling type is rank. Only `pair` is thread-safe.

    A pair is written by the header's template named `rerank`, else with the special tokens that the vocabulary puts
    around one text and between two.
    """

    normalised = False
    poolings = frozenset((llama_cpp.LLAMA_POOLING_TYPE_RANK,))
    purpose = "rerank"

    def __init__(self, options: EngineOptions, progress: Callable[[float], None]) -> None:
        """Loads the model. Raises as LlamaEncoder, and UNSUPPORTED for a classifier of several labels."""
        self._yes = 0  # the label whose probability is the relevance
        super().__init__(options, progress)
        template = llama_cpp.llama_model_chat_template(self._model, b"rerank")
        self._template = template.decode() if template else ""
        labels = [llama_cpp.llama_model_cls_label(self._model, at) for at in range(self._dimensions())]
        if len(labels) > 1:
            if sorted(labels) != [b"no", b"yes"]:
                raise EngineError("UNSUPPORTED", f"{options.model_id} has {len(labels)} labels; a reranker has one")
            self._yes = labels.index(b"yes")
        self.ready = replace(self.ready, dimensions=1)

    def _dimensions(self) -> int:
        return int(llama_cpp.llama_model_n_cls_out(self._model))

    def pair(self, query: str, document: str, document_tokens: int) -> Tokens:
        """Returns the input of a query and a document, of which `document_tokens` are kept; 0: all."""
        last = self._ids(document, around=False) if document_tokens or not self._template else np.zeros(0, np.int32)
        kept = last[:document_tokens] if document_tokens else last
        if self._template:
            text = document if len(kept) == len(last) else self._text(kept)
            before, _, after = self._template.partition("{document}")
            written = before.replace("{query}", query) + text + after.replace("{query}", query)
            return self._ids(written, around=False)
        vocab, ask = self._vocab, llama_cpp
        start = [ask.llama_vocab_bos(vocab)] if ask.llama_vocab_get_add_bos(vocab) else []
        end = [ask.llama_vocab_eos(vocab)] if ask.llama_vocab_get_add_eos(vocab) else []
        between = [ask.llama_vocab_sep(vocab)] if ask.llama_vocab_get_add_sep(vocab) else []
        parts = (start, self._ids(query, around=False), end + between, kept, end or between)
        return np.concatenate([np.asarray(part, np.int32) for part in parts])

    def _text(self, tokens: Tokens) -> str:
        """Returns the text of tokens; characters that they cut in two are left out."""
        ids = (llama_cpp.llama_token * len(tokens))(*tokens.tolist())
        room = len(tokens) * 256
        data = ctypes.create_string_buffer(room)
        count = llama_cpp.llama_detokenize(self._vocab, ids, len(tokens), data, room, False, False)
        return data.raw[: max(0, count)].decode(errors="ignore")

    def _finished(self, pooled: Vectors) -> Vectors:
        if len(pooled) > 1:  # llama.cpp has applied softmax to yes and no
            return pooled[self._yes : self._yes + 1]
        relevance: Vectors = (1 / (1 + np.exp(-pooled))).astype(np.float32)
        return relevance
