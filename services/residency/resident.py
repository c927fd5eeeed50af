"""What a loaded model is to those who manage memory, and what tells loaded models apart."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from services.errors import AllmError
from services.models.descriptor import ModelDescriptor
from services.models.registry import Runtime


class Resident(Protocol):
    """A loaded model."""

    @property
    def alive(self) -> bool:
        """Whether it can take requests; a dead one is replaced by the next lease."""

    @property
    def problem(self) -> AllmError | None:
        """Why it takes no requests any more; None while it does, and where nobody knows."""

    @property
    def pid(self) -> int:
        """Process id of its worker; 0 where it has none of its own."""

    @property
    def peak_memory(self) -> int:
        """The most memory that it has held, in bytes; 0 where that cannot be known."""

    async def close(self) -> None:
        """Gives up its worker and memory."""


class ResidentKey(NamedTuple):
    """What tells residents apart."""

    model_id: str
    generation: int
    runtime: str


def resident_key(descriptor: ModelDescriptor, runtime: Runtime) -> ResidentKey:
    """The key of a model under a runtime."""
    return ResidentKey(descriptor.id, descriptor.generation, runtime.name)
