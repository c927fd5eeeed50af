"""Grammars under vLLM: vLLM requests masks and reports tokens; our constraints hold the state, as in every runtime."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.structured_output.backend_types import StructuredOutputBackend, StructuredOutputGrammar

from services.text.engine.constraint import Constraint, no_token
from services.worker.messages import EngineError


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
