"""The device and precision of a model's weights, and the number of images that fit next to them."""

from __future__ import annotations

from enum import Enum
from typing import Any

import psutil
import torch

from services.image.engine.limits import CPU_PIXELS, SPARE, batch_images
from services.image.engine.messages import EngineOptions, Sizes
from services.worker.messages import EngineError

# Bytes per pixel of an image that a step or the decoding takes, in 32 bits: the widest layers of Stable Diffusion's
# decoder, 256 channels at full size in and out, plus the workspace of convolutions.
_BYTES_PER_PIXEL = 4096
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Offload(Enum):
    """The part of a model that is on the GPU."""

    NOTHING = "all of it, always"
    MODELS = "the component that runs"
    LAYERS = "the layer that runs"


def device_of(options: EngineOptions) -> torch.device:
    """Returns the device to compute on. Raises EngineError (UNSUPPORTED)."""
    if not options.gpu:
        return torch.device("cpu")
    if options.device in ("", "cuda") and torch.cuda.is_available():
        return torch.device("cuda")
    if options.device in ("", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    raise EngineError("UNSUPPORTED", "a GPU is requested, but torch finds no usable one")


def dtype_of(options: EngineOptions, transformer: bool) -> torch.dtype:
    """Returns the dtype. `auto`: float32 on a CPU; on a GPU float16, or bfloat16 for transformers."""
    if options.dtype == "auto":
        if not options.gpu:
            return torch.float32
        return torch.bfloat16 if transformer else torch.float16
    if options.dtype not in _DTYPES:
        message = f"ALLM_IMAGE_DTYPE={options.dtype}: the runtime diffusers supports {', '.join(_DTYPES)}"
        raise EngineError("UNSUPPORTED", message)
    return _DTYPES[options.dtype]


class Placement:
    """The placement of a model, chosen once, from the free memory when the weights are in main memory."""

    def __init__(self, pipeline: Any, device: torch.device, dtype: torch.dtype, sizes: Sizes, wanted: int) -> None:
        """`wanted` is the batch size that the operator chose, or 0."""
        self._device = device
        image = sizes.width * sizes.height * _BYTES_PER_PIXEL * dtype.itemsize // 4
        weights = [_bytes(part) for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
        self.offload = Offload.NOTHING
        room = int(_free(device) * SPARE)
        if device.type == "cuda":
            self.offload = choose_offload(weights, image, room)
            on_device = {Offload.NOTHING: sum(weights), Offload.MODELS: max(weights), Offload.LAYERS: 0}
            room -= on_device[self.offload]
        fitting = room // image
        if device.type == "cpu":
            fitting = min(fitting, CPU_PIXELS // (sizes.width * sizes.height))
        self.batch_images = batch_images(wanted, fitting)
        self._scarce = fitting < 1 and device.type == "cuda"

    def place(self, pipeline: Any) -> None:
        """Moves a pipeline's weights, and turns on slicing and tiling if memory is short."""
        if self.offload is Offload.MODELS:
            pipeline.enable_model_cpu_offload(device=self._device)
        elif self.offload is Offload.LAYERS:
            pipeline.enable_sequential_cpu_offload(device=self._device)
        else:
            pipeline.to(self._device)
        if self._scarce:
            pipeline.enable_attention_slicing()
            if hasattr(pipeline.vae, "enable_slicing"):
                pipeline.vae.enable_slicing()
                pipeline.vae.enable_tiling()


def choose_offload(weights: list[int], image: int, room: int) -> Offload:
    """Chooses the least offload that leaves room for one image. All in bytes."""
    if sum(weights) + image <= room:
        return Offload.NOTHING
    return Offload.MODELS if max(weights) + image <= room else Offload.LAYERS


def _bytes(module: torch.nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())


def _free(device: torch.device) -> int:
    """Returns the free bytes of the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)  # on Metal, too: GPU and host share their memory
