"""Messages between the image service and its worker. Pixels are uint8 RGB, row by row from the top left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from services.worker.messages import Cancel, LoadFailed, Loading, Phase, RequestRefused, Stop

Mode = Literal["text_to_image", "image_to_image", "inpainting"]
MAX_PARTIALS = 3  # previews of one image before it is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """A LoRA that is fused into a model's weights when the model is loaded."""

    path: str  # a safetensors file
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Engine options of a model; zero means derived from the model and the machine."""

    model_id: str
    path: str  # folder with model_index.json, or a single-file checkpoint
    base: str = ""  # for a checkpoint: the folder with model_index.json, configuration and tokenizers
    loras: tuple[Lora, ...] = ()
    threads: int
    gpu: bool
    device: str = ""  # the kind of the GPU: cuda or mps; empty: cuda
    dtype: str = "auto"  # auto, float32, float16 or bfloat16
    batch_images: int = 0  # most images that are computed together


@dataclass(frozen=True, slots=True)
class Load:
    """First message to a worker: the runtime and the model."""

    runtime: str
    options: EngineOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a model's images, in pixels. Other sizes are refused, never rounded."""

    width: int  # the model's default
    height: int
    multiple_of: int  # of each side
    min_side: int
    max_side: int
    max_pixels: int  # width x height


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidanceRange:
    """The allowed guidance. `minimum` equals `maximum` if the model's guidance is fixed."""

    default: float
    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReady:
    """The model is loaded."""

    family: str  # the pipeline's class, from model_index.json
    sizes: Sizes
    default_steps: int
    max_steps: int
    guidance: GuidanceRange
    schedulers: list[str]  # allowed values of `Parameters.scheduler`
    default_scheduler: str  # one of `schedulers`
    prompt_tokens: int  # most tokens of a prompt, without special tokens; of the encoder with the lowest limit
    modes: list[Mode]
    negative: bool  # negative prompts are supported
    image_strength: float  # the default strength of image_to_image
    mask_strength: float  # the default strength of inpainting
    batch_images: int  # most images that are computed together


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters that all images of a batch share, with the defaults of PipelineReady filled in."""

    width: int  # pixels
    height: int
    steps: int
    guidance: float
    scheduler: str  # one of `PipelineReady.schedulers`
    strength: float | None = None  # how much of the input image is repainted, above 0 to 1; None: no input image


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The input of one image."""

    prompt: str
    negative: str = ""  # negative prompt; empty: none
    seed: int  # 0 to 2**64 - 1
    image: bytes | None = None  # the input image: width x height RGB
    mask: bytes | None = None  # width x height bytes: 255 is repainted, 0 is kept; only with an image

    @property
    def mode(self) -> Mode:
        """The mode: an image without a mask is changed everywhere."""
        if self.image is None:
            return "text_to_image"
        return "image_to_image" if self.mask is None else "inpainting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """A request for images."""

    request: int = 0  # its number, set when it is sent
    client: str
    parameters: Parameters
    draft: Draft  # the first image; the seed of each further image is one higher
    count: int = 1  # images
    partials: int = 0  # most previews of each image, 0 to MAX_PARTIALS
    progress: bool = False  # send Progress messages
    deadline: float | None = None  # of the caller, on the monotonic clock


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request passed the checks and is queued."""

    request: int
    prompt_tokens: int  # of prompt and negative prompt together; of the encoder with the least room left


@dataclass(frozen=True, slots=True)
class Progress:
    """The request's progress: finished steps, as the mean over its images. Never decreases, and ends at `steps`."""

    request: int
    step: int
    steps: int  # per image: fewer than requested if strength leaves some out


@dataclass(frozen=True, slots=True)
class Picture:
    """An image or a preview of one. Images of a request need not arrive in the order of `index`."""

    request: int
    index: int  # in the request, from 0
    partial: int | None  # number of the preview, from 0; None: the image itself
    width: int
    height: int
    pixels: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """All images of the request are sent; the worker has forgotten it."""

    request: int
    seconds: float  # since its first image was started
    steps: int  # computed, over all its images


@dataclass(frozen=True, slots=True)
class Counters:
    """The loop's own counters after a step."""

    steps: int
    running: int  # requests with an image in the batch
    waiting: int  # requests without one
    batch: int  # images computed together in the last step


@dataclass(frozen=True, slots=True)
class Stepped:
    """The heartbeat: the end of a step; also sent while text encoders or decoders run."""

    counters: Counters
    phases: list[Phase] = field(default_factory=list)  # that requests have entered: `queue`, `steps` or `decode`


ToWorker = Load | Generate | Cancel | Stop
Result = Accepted | Progress | Picture | Finished
FromWorker = Loading | PipelineReady | LoadFailed | RequestRefused | Result | Stepped
