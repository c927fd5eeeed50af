"""What an image service and its worker say to each other. Pixels are uint8 RGB, row by row from the top left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from services.worker.messages import Cancel, Failed, Loading, Phase, Refused, Stop

__all__ = [
    "Accepted",
    "Cancel",
    "Counters",
    "EngineOptions",
    "Failed",
    "Finished",
    "FromWorker",
    "Generate",
    "GuidanceRange",
    "Load",
    "Loading",
    "Lora",
    "Mode",
    "Phase",
    "Picture",
    "Progress",
    "Ready",
    "Refused",
    "Sizes",
    "Stepped",
    "Stop",
    "ToWorker",
]

Mode = Literal["text_to_image", "image_to_image", "inpainting"]
MAX_PARTIALS = 3  # previews of one image before it is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """What is added to a model's weights when it is loaded."""

    path: str  # a safetensors file
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How to run a model; zero means derived from the model and the machine."""

    model_id: str
    path: str  # folder with model_index.json, or a checkpoint of one file
    base: str = ""  # of such a checkpoint: the folder with model_index.json, configuration and tokenizers
    loras: tuple[Lora, ...] = ()
    threads: int
    gpu: bool
    dtype: str = "auto"  # auto, float32, float16 or bfloat16
    batch_images: int = 0  # images that are computed together at the most


@dataclass(frozen=True, slots=True)
class Load:
    """First message to a worker: which runtime, which model."""

    runtime: str
    options: EngineOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Which images a model makes, in pixels. One that does not fit is refused: it is never rounded."""

    width: int  # the model's own
    height: int
    multiple_of: int  # of each side
    min_side: int
    max_side: int
    max_pixels: int  # width x height


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidanceRange:
    """How strongly an image may be held to its prompt. Both ends are equal where the model cannot be told."""

    default: float
    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The model is loaded."""

    family: str  # the class of its pipeline, as model_index.json names it
    sizes: Sizes
    default_steps: int
    max_steps: int
    guidance: GuidanceRange
    schedulers: list[str]  # names that `Generate.scheduler` may have
    default_scheduler: str  # one of them
    prompt_tokens: int  # most tokens of a prompt, without the encoder's own marks: of the encoder that takes fewest
    modes: list[Mode]
    negative: bool  # whether it takes negative prompts
    image_strength: float  # the model's own strength where an image is changed
    mask_strength: float  # where only what a mask covers is painted
    batch_images: int  # images that are computed together at the most


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """A request for images. All is given: the service fills in the defaults that Ready names."""

    request: int
    client: str
    prompt: str
    negative: str = ""  # what the images should not show; empty: nothing
    width: int
    height: int
    count: int = 1  # images
    seed: int  # of the first image, 0 to 2**64 - 1; the next one has the next
    steps: int
    guidance: float
    scheduler: str = ""  # empty: the model's own
    strength: float = 1.0  # above 0 to 1, of a request with an image: how much of it is painted anew
    image: bytes | None = None  # what to change: width x height RGB
    mask: bytes | None = None  # width x height bytes: 255 is painted anew, 0 is kept; only with an image
    partials: int = 0  # previews of each image at the most, 0 to MAX_PARTIALS
    progress: bool = False  # whether Progress is wanted
    deadline: float | None = None  # on the monotonic clock: then nobody waits any more


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request fits the model; it waits for its turn."""

    request: int
    prompt_tokens: int  # of prompt and negative prompt together, of the encoder that counted most


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the request is: steps done, as the mean over its images. Never falls, and ends at `steps`."""

    request: int
    step: int
    steps: int  # that each image takes: fewer than were asked for where strength leaves some out


@dataclass(frozen=True, slots=True)
class Picture:
    """An image, or a preview of one that is not done. Images of a request need not come in the order of `index`."""

    request: int
    index: int  # in the request, from 0
    partial: int | None  # number of the preview, from 0; None: the image itself
    width: int
    height: int
    pixels: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """All images of the request are told; the worker has forgotten it."""

    request: int
    seconds: float  # from its first step to here
    steps: int  # that were computed for it, of all its images


@dataclass(frozen=True, slots=True)
class Counters:
    """The loop's own counters after a step."""

    steps: int
    running: int  # requests with an image that is being made
    waiting: int  # requests that wait for their first image's turn
    batch: int  # images computed together in the last step


@dataclass(frozen=True, slots=True)
class Stepped:
    """The end of a step, also of a text encoder's or a decoder's work: the heartbeat."""

    counters: Counters
    phases: list[Phase] = field(default_factory=list)  # `queue`, `steps` or `decode`, that requests have entered


ToWorker = Load | Generate | Cancel | Stop
FromWorker = Loading | Ready | Failed | Refused | Accepted | Progress | Picture | Finished | Stepped
