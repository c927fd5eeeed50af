"""The interface of a loaded model, and its key."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from services.errors import AllmError
from services.models.descriptor import ModelDescriptor
from services.models.registry import Runtime


class Resident(Protocol):
    """A loaded model."""

    @property
    def alive(self) -> bool:
        """True if it takes requests; the next lease replaces a dead one."""

    @property
    def problem(self) -> AllmError | None:
        """Why it takes no more requests; None while it does, and if the cause is unknown."""

    @property
    def pid(self) -> int:
        """Process id of its worker; 0 if it has no separate process."""

    @property
    def peak_memory(self) -> int:
        """The peak of its memory, in bytes; 0 if unknown."""

    async def close(self) -> None:
        """Stops its worker and frees its memory."""


class ResidentKey(NamedTuple):
    """The identity of a resident."""

    model_id: str
    generation: int
    runtime: str


def resident_key(descriptor: ModelDescriptor, runtime: Runtime) -> ResidentKey:
    """Returns the key of a model under a runtime."""
    return ResidentKey(descriptor.id, descriptor.generation, runtime.name)
