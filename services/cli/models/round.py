"""The result of one benchmark round, for any kind of model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

ROUND_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Round:
    """A measured request: seconds to its first token or text, and tokens per second."""

    first_token: float
    rate: float


class Meter(Protocol):
    """Measures one kind of models."""

    def round(self, model_id: str) -> Round:
        """Measures one request. Raises Problem if it fails, or its answer is too short to measure."""
