"""Pictures for models that see: scaling to what the model takes, and encoding into embeddings.

transformers' own image processors, in their Pillow version, scale, cut and pad. Their result stays in bytes while a
request waits; encoding a part first normalises it with their numbers. A class for each family of models defines the
parts of a picture, the tokens around them, and the call of the definition that encodes a part.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.image_processing_backends import PilBackend

from services.text.engine.messages import Pixels
from services.text.engine.runtime import MOST_PICTURE_BYTES, PicturePart, picture_token
from services.text.engine.runtimes.torch.packing import Embeddings
from services.text.engine.runtimes.torch.vocabulary import TokenVocabulary, read_json
from services.worker.messages import EngineError, error_line

MIB = 1024**2
_NO_SETTINGS = frozenset({"image_processor_type", "processor_class", "auto_map"})
LONGEST_PADDED = 4096  # pixels of a side: longer pictures are scaled down before they are padded to a square
MOST_STRETCH = 100  # of the longer side to the shorter one; scaling a longer strip takes much memory


@dataclass(slots=True, eq=False, weakref_slot=True)
class View:
    """A part of a picture, scaled for the encoder."""

    pixels: Tensor  # uint8, as the image processor lays it out
    count: int  # tokens
    grid: tuple[int, int] | None = None  # rows and columns of tokens with rotary positions of their own


class HeldPictures:
    """The memory of the scaled pictures of all requests that wait or run."""

    def __init__(self) -> None:
        self._sizes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def hold(self, pictures: Mapping[Any, int], param: str) -> None:
        """Counts pictures, by their bytes, as long as they exist. Raises EngineError OVERLOADED."""
        held = sum(self._sizes.values())
        if held and held + sum(pictures.values()) > MOST_PICTURE_BYTES:
            message = f"pictures of {held / MIB:.0f} MiB wait, and at most {MOST_PICTURE_BYTES / MIB:.0f} MiB may"
            raise EngineError("OVERLOADED", message, param)
        self._sizes.update(pictures)


def image_of(pixels: Pixels) -> Image.Image:
    """Returns a picture as Pillow has it. Raises EngineError INVALID_REQUEST for a strip."""
    width, height = pixels.width, pixels.height
    if max(width, height) > MOST_STRETCH * min(width, height):
        message = f"the picture of {width} x {height} pixels is too narrow: a side is {MOST_STRETCH} times the other"
        raise EngineError("INVALID_REQUEST", message, pixels.param)
    return Image.frombytes("RGB", (width, height), pixels.pixels)


def unscalable(pixels: Pixels, error: BaseException) -> EngineError:
    """Returns the error for a picture that an image processor cannot scale."""
    picture = f"the picture of {pixels.width} x {pixels.height} pixels"
    return EngineError(
        "INVALID_REQUEST", f"{picture} cannot be scaled for the model: {error_line(error)}", pixels.param
    )


Pieces = Iterator[View | str | int]
"""The parts of a picture, and the tokens around them: one token, or a text."""


class Vision:
    """Scales and encodes pictures for a family of models. The base class of the families."""

    whole: ClassVar[bool] = False  # whether a token of a part sees all others of the part
    processors: ClassVar[tuple[Any, ...]]  # transformers' image processors that it is published with; first: the usual
    margins: ClassVar[tuple[str, str]] = ("", "")  # texts before and after a picture, part of the prompt's text

    def __init__(self, folder: Path, model: Any, vocabulary: TokenVocabulary) -> None:
        """Raises EngineError MODEL_INVALID if the image processor's settings do not fit the model."""
        self._model = model.model
        self._vocabulary = vocabulary
        self._processor = _processor(folder, self.processors)
        self._device = model.device
        self._held = HeldPictures()

    @classmethod
    def check(cls, config: PreTrainedConfig) -> None:
        """Raises EngineError UNSUPPORTED for a configuration that the family's class does not support."""

    def see(self, pixels: Pixels) -> tuple[list[int], list[PicturePart]]:
        """Returns the tokens that stand for a picture in a prompt, and its parts. Thread-safe.

        Raises EngineError: INVALID_REQUEST for a picture that cannot be scaled, OVERLOADED if too many wait.
        """
        image = image_of(pixels)
        try:
            pieces = list(self._pieces(image, pixels.detail))
        except ValueError as error:
            raise unscalable(pixels, error) from error
        self._held.hold({piece: piece.pixels.nbytes for piece in pieces if isinstance(piece, View)}, pixels.param)
        digest = pixels.digest
        tokens: list[int] = []
        parts: list[PicturePart] = []
        for piece in pieces:
            if isinstance(piece, View):
                advance = max(piece.grid) if piece.grid else None
                parts.append(PicturePart(len(tokens), piece.count, piece, whole=self.whole, advance=advance))
                tokens += [picture_token(digest, len(parts) - 1)] * piece.count
            else:
                tokens += [piece] if isinstance(piece, int) else self._vocabulary.plain(piece)
        return tokens, parts

    @torch.inference_mode()
    def encode(self, view: View) -> Embeddings:
        """Computes the embeddings of a part."""
        return self._encode(self._normalised(view.pixels), view)

    def _pieces(self, image: Image.Image, detail: str) -> Pieces:
        """Cuts a picture into parts and the texts of the tokens around them."""
        raise NotImplementedError

    def _encode(self, pixels: Tensor, view: View) -> Embeddings:
        """Encodes a part. `pixels` are normalised, in float32."""
        raise NotImplementedError

    def _processed(self, image: Image.Image, **options: Any) -> Any:
        """Runs the image processor, but leaves brightness in bytes."""
        processor: Any = self._processor
        return processor(images=[image], do_rescale=False, do_normalize=False, return_tensors="pt", **options)

    @staticmethod
    def _check_size(pixels: Tensor, size: int) -> None:
        """Raises EngineError MODEL_INVALID if pictures [.., height, width] do not have the encoder's size."""
        height, width = pixels.shape[-2:]
        if (height, width) != (size, size):
            message = f"the image processor scales to {width} x {height} pixels, but the encoder takes {size} x {size}"
            raise EngineError("MODEL_INVALID", message)

    def _normalised(self, pixels: Tensor) -> Tensor:
        """Returns bytes [pictures, colours, ..] as normalised float32, exactly as the image processor computes them."""
        processor: Any = self._processor
        found = pixels.to(self._device)
        shape = (-1, *[1] * (found.ndim - 2))
        scaled = found.float()
        if processor.do_rescale:
            # Metal has no 64-bit floats.
            wide = scaled if self._device.type == "mps" else found.double()
            scaled = (wide * processor.rescale_factor).float()
        if processor.do_normalize:
            mean, deviation = (
                torch.tensor(each, dtype=torch.float32, device=self._device).view(shape)
                for each in (processor.image_mean, processor.image_std)
            )
            scaled = (scaled - mean) / deviation
        return scaled


def _processor(folder: Path, known: Sequence[Any]) -> PilBackend:
    """Creates the image processor with the model's settings.

    transformers' AutoImageProcessor wants torchvision in some releases. Raises EngineError MODEL_INVALID, UNSUPPORTED.
    """
    settings: Any = read_json(folder / "preprocessor_config.json", optional=True)
    settings = settings or read_json(folder / "processor_config.json", optional=True).get("image_processor")
    if not isinstance(settings, dict):
        message = f"{folder} has no settings of an image processor (preprocessor_config.json or processor_config.json)"
        raise EngineError("MODEL_INVALID", message)
    by_name = {kind.__name__.removesuffix("Pil"): kind for kind in known}
    name = str(settings.get("image_processor_type", next(iter(by_name)))).removesuffix("Fast")
    if name not in by_name:
        message = f"the runtime torch does not know the image processor {name!r} (image_processor_type)"
        raise EngineError("UNSUPPORTED", message)
    try:
        processor: PilBackend = by_name[name](**{key: settings[key] for key in settings.keys() - _NO_SETTINGS})
    except Exception as error:  # wrong values raise various types
        message = f"the image processor's settings in {folder} cannot be read: {error_line(error)}"
        raise EngineError("MODEL_INVALID", message) from error
    return processor
