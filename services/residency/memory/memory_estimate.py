"""A model's estimated memory per device. Each service computes its own estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.byte_count import bytes_word
from services.settings.settings import MIB, ResidencySettings

HOST = "host"  # main memory, as opposed to a GPU's
DEVICE = "cuda:0"  # the GPU that models run on
TORCH_CONTEXT = 600 * MIB  # CUDA and its kernels, on the device; llama.cpp's are as large
NUMBER_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes that a loaded model takes above an idle worker, at its peak.

    A key of `places` is `host` or a `DeviceMemory.name` such as `cuda:0`. Devices that hold nothing are omitted.
    """

    places: Mapping[str, int]
    parts: Mapping[str, int] = field(default_factory=dict)  # breakdown, for messages: `weights`, `cache`

    @classmethod
    def of(cls, parts: Mapping[str, int], processes: Mapping[str, int], *, gpu: bool) -> MemoryEstimate:
        """Puts `parts` on the GPU or, without `gpu`, on the host, and the worker's `processes` on the host."""
        model, aside = sum(parts.values()), sum(processes.values())
        return cls({HOST: aside, DEVICE: model} if gpu else {HOST: model + aside}, {**parts, **processes})

    @property
    def total(self) -> int:
        """Bytes of all devices together."""
        return sum(self.places.values())

    def __str__(self) -> str:
        """For example `1.2 GiB on cuda:0 and 200 MiB on the host (weights 1.0 GiB, cache 400 MiB)`."""
        where = " and ".join(f"{bytes_word(count)} on {place_word(place)}" for place, count in self.places.items())
        made = ", ".join(f"{name} {bytes_word(count)}" for name, count in self.parts.items())
        return f"{where or 'nothing'} ({made})" if made else where or "nothing"


def budget_of(place: str, settings: ResidencySettings) -> tuple[int, str]:
    """Returns the bytes that all models together may take of a device, 0 if unlimited, and the setting's name."""
    if place == HOST:
        return settings.host_bytes, "ALLM_HOST_MEMORY_BYTES"
    return settings.device_bytes, "ALLM_DEVICE_MEMORY_BYTES"


def place_word(place: str) -> str:
    """Returns a device's name for a sentence."""
    return "the host" if place == HOST else place
