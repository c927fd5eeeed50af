"""A model's estimated memory per device. Each service computes its own estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.byte_count import bytes_word
from services.models.runtimes import RuntimeSpec
from services.settings.modality_settings import MIB
from services.settings.settings import ResidencySettings

HOST = "host"  # main memory, as opposed to a GPU's
TORCH_CONTEXT = 600 * MIB  # CUDA and its kernels, on the device; llama.cpp's are as large
_OWN_MEMORY = ("cuda", "vulkan")
NUMBER_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes that a loaded model takes above an idle worker, at its peak.

    A key of `devices` is `host` or a `DeviceMemory.name` such as `cuda:0`. Devices that hold nothing are omitted.
    """

    devices: Mapping[str, int]
    parts: Mapping[str, int] = field(default_factory=dict)  # breakdown, for messages: `weights`, `cache`

    @classmethod
    def of(cls, parts: Mapping[str, int], processes: Mapping[str, int], runtime: RuntimeSpec) -> MemoryEstimate:
        """Puts `parts` on the device of the runtime, and the worker's `processes` on the host.

        If the GPU's memory is the host's, `parts` count on both, because both have to have room; with Metal only on the
        host, whose figures are the GPU's.
        """
        model, aside = sum(parts.values()), sum(processes.values())
        device = gpu_of(runtime)
        if not device:
            return cls({HOST: model + aside}, {**parts, **processes})
        host = aside + (model if runtime.shares_host else 0)
        return cls({HOST: host, device: model}, {**parts, **processes})

    @property
    def total(self) -> int:
        """Bytes of all devices together."""
        return sum(self.devices.values())

    def __str__(self) -> str:
        """For example `1.2 GiB on cuda:0 and 200 MiB on the host (weights 1.0 GiB, cache 400 MiB)`."""
        where = " and ".join(f"{bytes_word(count)} on {device_word(device)}" for device, count in self.devices.items())
        made = ", ".join(f"{name} {bytes_word(count)}" for name, count in self.parts.items())
        return f"{where or 'nothing'} ({made})" if made else where or "nothing"


def gpu_of(runtime: RuntimeSpec) -> str:
    """Returns the device whose memory a runtime's models take besides the host's, such as `cuda:0`; empty: none."""
    return f"{runtime.device}:0" if runtime.device in _OWN_MEMORY else ""


def budget_of(device: str, settings: ResidencySettings) -> tuple[int, str]:
    """Returns the bytes that all models together may take of a device, 0 if unlimited, and the setting's name."""
    if device == HOST:
        return settings.host_bytes, "ALLM_HOST_MEMORY_BYTES"
    return settings.device_bytes, "ALLM_DEVICE_MEMORY_BYTES"


def share_of(device: str, threshold: float) -> float:
    """Returns the share of a device's memory above which idle models are unloaded and no more are admitted.

    Of the host it is `threshold` (ALLM_MEMORY_THRESHOLD): files are cached there, and other programs grow. Of a GPU
    half as much stays free: few others use it, and the estimates contain what CUDA takes.
    """
    return threshold if device == HOST else (1 + threshold) / 2


def device_word(device: str) -> str:
    """Returns a device's name for a sentence."""
    return "the host" if device == HOST else device
