"""What one round of measuring a model tells, whatever the model does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

ROUND_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Round:
    """One request: seconds to its first token, or text, and tokens per second."""

    first_token: float
    rate: float


class Meter(Protocol):
    """Measures a kind of models."""

    def round(self, model_id: str) -> Round:
        """Measures one request. Raises Problem where it fails, or is answered with too little to measure."""
