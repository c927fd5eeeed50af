"""The core's request type, independent of the wire format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Task = Literal["generate", "edit", "vary"]
Quality = Literal["auto", "low", "medium", "high", "xhigh", "max"]
FileKind = Literal["png", "jpeg", "webp"]


@dataclass(frozen=True, slots=True)
class Output:
    """The output file format."""

    kind: FileKind = "png"
    quality: int = 100  # 0 to 100, of jpeg and webp


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """A request; None and "" leave a value to the model's default."""

    model: str  # id or alias
    task: Task = "generate"
    prompt: str = ""
    negative_prompt: str = ""
    size: tuple[int, int] | None = None  # width, height
    count: int = 1
    seed: int | None = None  # of the first picture
    steps: int | None = None
    quality: Quality = "auto"  # a multiple of the model's default steps, used if `steps` is None
    guidance: float | None = None
    scheduler: str = ""
    strength: float | None = None
    image: bytes = field(default=b"", repr=False)  # a file; unless the task is `generate`
    mask: bytes = field(default=b"", repr=False)  # a file; empty: the transparent areas of the edited image
    output: Output = field(default_factory=Output)
    partials: int = 0  # previews of each picture, 0 to 3
    progress: bool = False
