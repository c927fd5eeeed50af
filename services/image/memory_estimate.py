"""The memory estimate of an image model before it is loaded, from its files' headers and the settings.

    numbers x bytes of the dtype + the largest file as mapped + images x pixels x channels x 32 x bytes / 4 + 119 MiB

`numbers` counts the weights of all components, `images` the images of a batch; `channels` is the first of the VAE's
`block_out_channels`. The peak is the VAE's decoding at full size (128 channels for Stable Diffusion: see
_BYTES_PER_PIXEL in services/image/engine/runtimes/diffusers/placement.py). The constant covers torch's kernels and heap
fragmentation, which grows during the first few batches. It is fitted to the peak of shapes-sd above `worker`, a worker
that has only imported its pipelines. If a GPU is too small for the whole model, parts of it stay on the host, and the
device holds only the component that runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from services.image.engine.limits import CPU_PIXELS, SPARE, batch_images
from services.image.engine.messages import EngineOptions
from services.models.descriptor import ModelDescriptor
from services.models.formats.document import known_object
from services.models.formats.safetensors_header import read_tensors
from services.models.hub.source import LocalTree
from services.models.runtimes import RuntimeSpec
from services.residency.memory.device_memory import DeviceMemory, read_devices
from services.residency.memory.memory_estimate import HOST, NUMBER_BYTES, TORCH_CONTEXT, MemoryEstimate, gpu_of
from services.settings.modality_settings import MIB

WORKER_BYTES = 463 * MIB  # a worker that has imported torch, transformers and the pipelines
_WEIGHTS = ".safetensors"
_KERNELS = 119 * MIB
_CHANNELS, _SIDE = 128, 512  # defaults for models that do not say
_BYTES_PER_CHANNEL = 32  # of a pixel, in 32 bits


class ImageMemoryEstimate:
    """Estimates memory for one service. `options` returns the manager's engine options for a model."""

    def __init__(
        self,
        options: Callable[[ModelDescriptor, RuntimeSpec], EngineOptions],
        devices: Callable[[], list[DeviceMemory]] = read_devices,
    ) -> None:
        self._options = options
        self._devices = devices

    def __call__(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> MemoryEstimate:
        """Estimates a model's peak memory. Reads headers only.

        Raises:
            AllmError, OSError, ValueError: a header cannot be read.
        """
        options = self._options(descriptor, runtime)
        number = NUMBER_BYTES.get(options.dtype, 2 if options.gpu else 4)
        files = [path for path in descriptor.files if path.suffix == _WEIGHTS]
        weights = {path: _numbers(path) * number for path in files}
        channels, side = _decoder(descriptor.base or descriptor.primary)
        images = batch_images(options.batch_images, 1 if options.gpu else CPU_PIXELS // side**2)
        parts = {
            "weights": sum(weights.values()),
            "compute": images * side**2 * channels * _BYTES_PER_CHANNEL * number // 4 + _KERNELS,
        }
        device = gpu_of(runtime)
        if not device:
            parts["weights"] += max((path.stat().st_size for path in files), default=0)
            return MemoryEstimate.of(parts, {"worker": WORKER_BYTES}, runtime)
        parts["compute"] += TORCH_CONTEXT
        host = WORKER_BYTES + parts["weights"]  # weights are read into host memory before they move to the device
        taken = self._on_device(device, parts, weights)
        return MemoryEstimate({HOST: host, device: taken}, {**parts, "worker": WORKER_BYTES})

    def _on_device(self, device: str, parts: Mapping[str, int], weights: Mapping[Path, int]) -> int:
        """Returns the whole estimate, or, if the GPU is too small, the running component's (see choose_offload)."""
        whole = sum(parts.values())
        total = next((each.total for each in self._devices() if each.name == device), whole)
        if whole <= total * SPARE:
            return whole
        components: dict[Path, int] = {}
        for path, size in weights.items():
            components[path.parent] = components.get(path.parent, 0) + size
        return min(whole, max(components.values(), default=0) + parts["compute"], int(total * SPARE))


def _numbers(path: Path) -> int:
    tree = LocalTree(path.parent, [path.parent, path.resolve().parent], depth=0, wanted=path.name)
    return sum(math.prod(tensor.shape) for tensor in read_tensors(tree, path.name).values())


def _decoder(folder: Path) -> tuple[int, int]:
    """Returns the VAE's channels at full size, and the side of the model's default picture in pixels."""
    vae = _config(folder / "vae" / "config.json")
    blocks = vae.get("block_out_channels") or [_CHANNELS] * 4
    denoiser = _config(folder / "unet" / "config.json") or _config(folder / "transformer" / "config.json")
    side = denoiser.get("sample_size")
    return int(blocks[0]), side * 2 ** (len(blocks) - 1) if isinstance(side, int) and side > 0 else _SIDE


def _config(path: Path) -> dict[str, Any]:
    return known_object(path) if path.is_file() else {}
