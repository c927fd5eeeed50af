"""How much memory a model takes, place by place. What it is computed from is each service's to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.byte_count import bytes_word
from services.settings.settings import MIB, ResidencySettings

HOST = "host"  # the place of what is no device's own memory
DEVICE = "cuda:0"  # the GPU that a model is on
TORCH_CONTEXT = 600 * MIB  # of CUDA and its kernels, on the device; llama.cpp's are as large
NUMBER_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes that a loaded model takes above an idle worker, at its peak.

    A place is `host`, or a device as `DeviceMemory.name` calls it: `cuda:0`. What a place does not hold is not named.
    """

    places: Mapping[str, int]
    parts: Mapping[str, int] = field(default_factory=dict)  # what it is made of, for messages: `weights`, `cache`

    @classmethod
    def of(cls, parts: Mapping[str, int], processes: Mapping[str, int], *, gpu: bool) -> MemoryEstimate:
        """`parts` of a model on the GPU, if it is there, and on the host the processes that work on them."""
        model, aside = sum(parts.values()), sum(processes.values())
        return cls({HOST: aside, DEVICE: model} if gpu else {HOST: model + aside}, {**parts, **processes})

    @property
    def total(self) -> int:
        """Bytes of all places together."""
        return sum(self.places.values())

    def __str__(self) -> str:
        """As `1.2 GiB on cuda:0 and 200 MiB on the host (weights 1.0 GiB, cache 400 MiB)`."""
        where = " and ".join(f"{bytes_word(count)} on {place_word(place)}" for place, count in self.places.items())
        made = ", ".join(f"{name} {bytes_word(count)}" for name, count in self.parts.items())
        return f"{where or 'nothing'} ({made})" if made else where or "nothing"


def budget_of(place: str, settings: ResidencySettings) -> tuple[int, str]:
    """Bytes that all models together may take of a place, 0 where nothing is set, and the setting that says so."""
    if place == HOST:
        return settings.host_bytes, "ALLM_HOST_MEMORY_BYTES"
    return settings.device_bytes, "ALLM_DEVICE_MEMORY_BYTES"


def place_word(place: str) -> str:
    """A place in a sentence."""
    return "the host" if place == HOST else place
