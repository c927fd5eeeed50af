"""Pictures for models that see: scaling to what the model takes, and encoding into embeddings.

transformers' own image processors, in their Pillow version, scale, cut and pad. Their result stays in bytes while a
request waits; encoding a part first normalises it with their numbers. A class for each family of models defines the
parts of a picture, the tokens around them, and the call of the definition that encodes a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, PreTrainedConfig
from transformers.image_processing_backends import PilBackend

from services.text.engine.messages import Pixels
from services.text.engine.runtime import PicturePart, picture_token
from services.text.engine.runtimes.torch.embeddings import Embeddings
from services.text.engine.runtimes.torch.vocabulary import TokenVocabulary
from services.worker.messages import EngineError, error_line

LONGEST_PADDED = 4096  # pixels of a side: longer pictures are scaled down before they are padded to a square
MOST_STRETCH = 100  # of the longer side to the shorter one; scaling a longer strip takes much memory


@dataclass(slots=True)
class View:
    """A part of a picture, scaled for the encoder."""

    pixels: Tensor  # uint8, as the image processor lays it out
    count: int  # tokens
    grid: tuple[int, int] | None = None  # rows and columns of tokens; None: their places do not matter


class Vision:
    """How a family of models sees: the base of the families' classes."""

    whole: ClassVar[bool] = False  # whether a token of a part sees all others of the part
    margins: ClassVar[tuple[str, str]] = ("", "")  # texts before and after a picture, part of the prompt's text

    def __init__(self, folder: Path, model: Any, vocabulary: TokenVocabulary) -> None:
        """Raises EngineError MODEL_INVALID if the image processor's settings do not fit the model."""
        self._model = model.model
        self._vocabulary = vocabulary
        self._processor = _processor(folder)
        self._device = model.device

    @classmethod
    def check(cls, config: PreTrainedConfig) -> None:
        """Raises EngineError UNSUPPORTED for a configuration that the family's class does not support."""

    def see(self, pixels: Pixels) -> tuple[list[int], list[PicturePart]]:
        """Returns the tokens that stand for a picture in a prompt, and its parts. Thread-safe.

        Raises EngineError INVALID_REQUEST for a picture that cannot be scaled.
        """
        width, height = pixels.width, pixels.height
        if max(width, height) > MOST_STRETCH * min(width, height):
            message = (
                f"the picture of {width} x {height} pixels is too narrow: a side is {MOST_STRETCH} times the other"
            )
            raise EngineError("INVALID_REQUEST", message, pixels.param)
        image = Image.frombytes("RGB", (width, height), pixels.pixels)
        try:
            pieces = list(self._pieces(image, pixels.detail))
        except ValueError as error:
            message = f"the picture of {width} x {height} pixels cannot be scaled for the model: {error_line(error)}"
            raise EngineError("INVALID_REQUEST", message, pixels.param) from error
        digest, tokens, parts = pixels.digest, [], []  # type: ignore[var-annotated]
        for piece in pieces:
            if isinstance(piece, View):
                parts.append(PicturePart(len(tokens), piece.count, piece, whole=self.whole))
                tokens += [picture_token(digest, len(parts) - 1)] * piece.count
            else:
                tokens += self._vocabulary.plain(piece)
        return tokens, parts

    @torch.inference_mode()
    def encode(self, view: View) -> Embeddings:
        """Computes the embeddings of a part."""
        return self._encode(self._normalised(view.pixels), view)

    def _pieces(self, image: Image.Image, detail: str) -> Iterator[View | str]:
        """Cuts a picture into parts and the texts of the tokens around them."""
        raise NotImplementedError

    def _encode(self, pixels: Tensor, view: View) -> Embeddings:
        """Encodes a part. `pixels` are normalised, in float32."""
        raise NotImplementedError

    def _processed(self, image: Image.Image, **options: Any) -> Any:
        """Runs the image processor, but leaves brightness in bytes."""
        processor: Any = self._processor
        return processor(images=[image], do_rescale=False, do_normalize=False, return_tensors="pt", **options)

    def _normalised(self, pixels: Tensor, channels: int = -3) -> Tensor:
        """Returns bytes as normalised float32, exactly as the image processor computes them.

        `channels` is the dimension of the colours.
        """
        processor: Any = self._processor
        found = pixels.to(self._device)
        shape = [1] * found.ndim
        shape[channels] = -1
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


class Llava(Vision):
    """LLaVA: one view, whose patches are the tokens."""

    def __init__(self, folder: Path, model: Any, vocabulary: TokenVocabulary) -> None:
        super().__init__(folder, model, vocabulary)
        config = model.config
        self._size = config.vision_config.image_size
        patches = (self._size // config.vision_config.patch_size) ** 2
        dropped = config.vision_feature_select_strategy == "default"
        self._count = patches + _TOWERS[config.vision_config.model_type] - dropped

    @classmethod
    def check(cls, config: PreTrainedConfig) -> None:
        """Raises EngineError UNSUPPORTED for an encoder of another kind."""
        kind = config.vision_config.model_type
        if kind not in _TOWERS:
            known = " and ".join(sorted(_TOWERS))
            raise EngineError("UNSUPPORTED", f"the runtime torch sees with {known}, not with {kind!r} (vision_config)")

    def _pieces(self, image: Image.Image, detail: str) -> Iterator[View | str]:
        if getattr(self._processor, "do_pad", False):
            image.thumbnail((LONGEST_PADDED, LONGEST_PADDED))
        pixels = self._processed(image)["pixel_values"]
        if tuple(pixels.shape) != (1, 3, self._size, self._size):
            height, width = pixels.shape[-2:]
            message = f"the image processor scales to {width} x {height} pixels, but the encoder takes"
            raise EngineError("MODEL_INVALID", f"{message} {self._size} x {self._size}")
        yield View(pixels, self._count)

    def _encode(self, pixels: Tensor, view: View) -> Embeddings:
        return Embeddings(self._model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output[0])


# model_type of LLaVA's encoders: the number of tokens before those of the patches.
_TOWERS = {"clip_vision_model": 1, "siglip_vision_model": 0}

FAMILIES: dict[str, type[Vision]] = {"llava": Llava}
"""The families by model_type."""


def check_family(config: PreTrainedConfig) -> None:
    """Raises EngineError UNSUPPORTED for a model that this runtime does not see with."""
    kind = config.model_type
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        message = f"the runtime torch does not see with the architecture {kind!r}, only with {known}"
        raise EngineError("UNSUPPORTED", message)
    FAMILIES[kind].check(config)


def vision_of(folder: Path, model: Any, vocabulary: TokenVocabulary) -> Vision | None:
    """Returns how a loaded model sees; None for a model of text.

    Raises EngineError MODEL_INVALID or UNSUPPORTED, with the cause named.
    """
    family = FAMILIES.get(model.config.model_type)
    return family(folder, model, vocabulary) if family else None


def _processor(folder: Path) -> PilBackend:
    """Reads the settings of the image processor. Raises EngineError MODEL_INVALID."""
    auto: Any = AutoImageProcessor
    try:
        processor = auto.from_pretrained(folder, backend="pil", local_files_only=True, trust_remote_code=False)
    except Exception as error:  # wrong values raise various types
        message = f"the image processor's settings in {folder} cannot be read: {error_line(error)}"
        raise EngineError("MODEL_INVALID", message) from error
    if not isinstance(processor, PilBackend):
        raise EngineError("MODEL_INVALID", f"{folder} has no image processor but a {type(processor).__name__}")
    return processor
