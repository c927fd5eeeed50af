"""The `torch` runtime for rerankers: cross-encoders, and decoders that answer yes or no (Qwen3-Reranker's form).

    encoder   the class for sequence classification, with one label: sigmoid(logit)
    decoder   the last hidden state h of a prompt with query and document: sigmoid(h . (yes - no)), with the two rows of
              the output matrix; or sigmoid(h . w) for a decoder whose output was converted to a classifier w

References: https://huggingface.co/Qwen/Qwen3-Reranker-0.6B (prompt and score), `LogitScore` of sentence-transformers
(https://sbert.net/docs/package_reference/cross_encoder/modules.html).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedConfig

from services.text.engine.embedding_loop import Tokens
from services.text.engine.runtimes.torch.encoder import TorchEncoder, load
from services.text.engine.runtimes.torch.recipe import input_limit, is_qwen_reranker, logit_tokens
from services.worker.messages import EngineError

# Qwen3-Reranker's prompt, with the instruction that its publishers recommend if the caller has none.
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_PAIR = (
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}"
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class TorchReranker(TorchEncoder):
    """A reranker in torch. Only `pair` is thread-safe. Inputs are [tokens, 2]: ids and segments."""

    normalised = False
    exact = True  # a score shows errors that the direction of a vector hides

    def _open(self, folder: Path, config: PreTrainedConfig, precision: torch.dtype) -> tuple[Any, int]:
        self._query: tuple[str, list[int]] = ("", [])
        names = getattr(config, "architectures", None) or []
        classifies = any(name.endswith("ForSequenceClassification") for name in names)
        if classifies and config.num_labels != 1:
            message = f"the model classifies into {config.num_labels} labels; a reranker has one"
            raise EngineError("UNSUPPORTED", message)
        auto = AutoModelForSequenceClassification if classifies or not self._decodes else AutoModelForCausalLM
        model: Any = load(folder, config, auto, precision, self._device)
        self._head: torch.Tensor | None = None
        if self._decodes:
            if not is_qwen_reranker(folder):
                message = f"{folder.name} does not say that its prompt is Qwen3-Reranker's; no other one is known"
                raise EngineError("UNSUPPORTED", message)
            self._head = (model.score.weight[0] if classifies else self._answer(folder, model)).detach().float()
            self._frame = [self._tokenizer.encode(text, add_special_tokens=False) for text in (_BEFORE, _AFTER)]
            model = model.model
        else:
            self._frame, self._types = self._template()
        self._segments = "token_type_ids" in self._tokenizer.model_input_names and not self._decodes
        return model, input_limit(folder)

    def _answer(self, folder: Path, model: Any) -> torch.Tensor:
        """Returns the difference of the output matrix's rows for yes and no [size]."""
        yes, no = logit_tokens(folder) or tuple(map(self._tokenizer.convert_tokens_to_ids, ("yes", "no")))
        rows = model.lm_head.weight
        known = all(isinstance(token, int) and 0 <= token < len(rows) for token in (yes, no))
        if not known or yes == no:  # an unknown word is the same token as any other
            raise EngineError("MODEL_INVALID", f"{folder.name} has no tokens to answer yes and no with")
        difference: torch.Tensor = rows[yes].float() - rows[no].float()
        return difference

    def _template(self) -> tuple[list[list[int]], list[int]]:
        """Returns the special tokens before, between and after the texts of a pair, and the segments of all five."""
        pair = self._tokenizer("a", "a")
        kinds, ids = pair.sequence_ids(0), pair["input_ids"]
        types = pair.get("token_type_ids") or [0] * len(ids)
        first, second = kinds.index(0), kinds.index(1)
        end = len(kinds) - kinds[::-1].index(0)
        last = len(kinds) - kinds[::-1].index(1)
        places = (0, first, end, second, last)
        segments = [types[place] if place < len(types) else types[-1] for place in places]
        return [ids[:first], ids[end:second], ids[last:]], segments

    def pair(self, query: str, document: str, document_tokens: int) -> Tokens:
        """Returns the input of a query and a document, of which `document_tokens` are kept; 0: all."""
        if document_tokens:
            document = self._cut(document, document_tokens)
        if self._decodes:
            before, after = self._frame
            written = self._plain(_PAIR.format(query=query, document=document))
            return _with_segments([before, written, after], [0, 0, 0])
        if self._query[0] != query or not self._query[1]:
            self._query = query, self._plain(query)
        before, between, after = self._frame
        return _with_segments([before, self._query[1], between, self._plain(document), after], self._types)

    def _plain(self, text: str) -> list[int]:
        """Tokenizes a text without special tokens around it."""
        found = self._tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)
        ids: list[int] = found["input_ids"]
        return ids

    def _cut(self, text: str, tokens: int) -> str:
        found = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )
        places = found["offset_mapping"]
        return text if len(places) <= tokens else text[: places[tokens - 1][1]]

    def _vectors(self, inputs: Sequence[Tokens], lengths: torch.Tensor, **given: Any) -> torch.Tensor:
        if self._head is not None:
            hidden = self._model(**given).last_hidden_state
            last = hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1].float()
            return torch.sigmoid(last @ self._head).unsqueeze(1)
        if self._segments:
            width = given["input_ids"].shape[1]
            segments = [tokens[:, 1] if tokens.ndim == 2 else tokens[:0] for tokens in inputs]  # one text: the first
            given["token_type_ids"] = self._padded(segments, width, 0)
        return torch.sigmoid(self._model(**given).logits.float())


def _with_segments(parts: Sequence[Sequence[int]], segments: Sequence[int]) -> Tokens:
    """Joins parts of a pair to [tokens, 2]: ids and segments."""
    ids = np.concatenate([np.asarray(part, np.int32) for part in parts])
    return np.stack([ids, np.repeat(np.asarray(segments, np.int32), list(map(len, parts)))], axis=1)
