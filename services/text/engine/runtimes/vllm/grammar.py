"""Grammars under vLLM: it asks for masks and tells the tokens; the state is ours, as for every runtime."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.structured_output.backend_types import StructuredOutputBackend, StructuredOutputGrammar

from services.text.engine.constraint import Constraint, no_token
from services.worker.messages import EngineError


class ConstraintGrammar(StructuredOutputGrammar):  # type: ignore[misc]
    """Where one request's answer is in its grammar."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._stuck = False

    @property
    def fault(self) -> EngineError | None:
        """Why the answer cannot go on."""
        return no_token() if self._stuck else self._constraint.fault

    @property
    def complete(self) -> bool:
        """Whether the answer is whole and nothing can follow."""
        return self._constraint.complete

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Moves on by what was sampled. Always true: the loop asks for `fault`, vLLM would log the tokens."""
        for token in tokens:
            if not self.is_terminated():
                self._constraint.consume(token)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """For tokens that a smaller model has guessed, of which there are none here."""
        raise NotImplementedError

    def rollback(self, num_tokens: int) -> None:
        """For the same."""
        raise NotImplementedError

    def fill_bitmask(self, bitmask: Tensor, idx: int) -> None:
        """Writes what may come next into a row of int32 [rows, words]. A row without any token stands for a fault."""
        row = bitmask[idx]
        self._constraint.fill(row.data_ptr(), row.nbytes)
        if not bool(row.any()):
            self._stuck = True
            row.fill_(-1)

    def is_terminated(self) -> bool:
        """Whether no mask is wanted any more: the loop ends the request before its next token is seen."""
        return self._stuck or self._constraint.complete or self._constraint.fault is not None

    def reset(self) -> None:
        """A request that starts over keeps its tokens, and so its state."""


class ConstraintBackend(StructuredOutputBackend):  # type: ignore[misc]
    """Stands where vLLM has a library for grammars; requests bring theirs compiled."""

    def __init__(self, vocabulary: int) -> None:
        """Takes the number of tokens that the logits are for."""
        self._words = (vocabulary + 31) // 32

    def compile_grammar(self, *_: Any, **__: Any) -> StructuredOutputGrammar:
        """Never asked."""
        raise NotImplementedError

    def allocate_token_bitmask(self, max_num_seqs: int) -> Tensor:
        """Masks that allow everything, int32 [rows, words]."""
        return torch.full((max_num_seqs, self._words), -1, dtype=torch.int32)

    def destroy(self) -> None:
        """Nothing is to be given up."""
