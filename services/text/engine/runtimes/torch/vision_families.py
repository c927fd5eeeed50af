"""The families of models that see, by transformers' definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from services.text.engine.runtimes.torch.packing import Embeddings
from services.text.engine.runtimes.torch.vision import LONGEST_PADDED, Pieces, View, Vision
from services.text.engine.runtimes.torch.vocabulary import TokenVocabulary
from services.worker.messages import EngineError

# model_type of LLaVA's encoders: the number of tokens before those of the patches.
_TOWERS = {"clip_vision_model": 1, "siglip_vision_model": 0}


class Llava(Vision):
    """LLaVA: one view, whose patches are the tokens."""

    processors: ClassVar[tuple[Any, ...]] = (CLIPImageProcessorPil, LlavaImageProcessorPil, SiglipImageProcessorPil)

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

    def _pieces(self, image: Image.Image, detail: str) -> Pieces:
        if getattr(self._processor, "do_pad", False):
            image.thumbnail((LONGEST_PADDED, LONGEST_PADDED))
        pixels = self._processed(image)["pixel_values"]
        self._check_size(pixels, self._size)
        yield View(pixels, self._count)

    def _encode(self, pixels: Tensor, view: View) -> Embeddings:
        return Embeddings(self._model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output[0])


class Idefics3(Vision):
    """Idefics3 and SmolVLM: tiles of the picture, row by row, then the picture as a whole; or only that."""

    processors: ClassVar[tuple[Any, ...]] = (Idefics3ImageProcessorPil, SmolVLMImageProcessorPil)

    def __init__(self, folder: Path, model: Any, vocabulary: TokenVocabulary) -> None:
        super().__init__(folder, model, vocabulary)
        self._size = model.config.vision_config.image_size

    def _pieces(self, image: Image.Image, detail: str) -> Pieces:
        less = {"do_image_splitting": False} if detail == "low" else {}
        found = self._processed(image, return_row_col_info=True, **less)
        tiles, (rows,), (columns,) = found["pixel_values"][0], found["rows"][0], found["cols"][0]
        self._check_size(tiles, self._size)
        views = iter(tiles.split(1))
        for row in range(rows):
            for column in range(columns):
                yield f"<fake_token_around_image><row_{row + 1}_col_{column + 1}>"
                yield View(next(views), self._model.image_seq_len)
            yield "\n" if row + 1 < rows else "\n\n"
        yield "<fake_token_around_image><global-img>"
        yield View(next(views), self._model.image_seq_len)
        yield "<fake_token_around_image>"

    def _encode(self, pixels: Tensor, view: View) -> Embeddings:
        return Embeddings(self._model.get_image_features(pixel_values=pixels[None], return_dict=True).pooler_output[0])


class Gemma3(Vision):
    """Gemma 3: one view, whose tokens see each other."""

    processors: ClassVar[tuple[Any, ...]] = (Gemma3ImageProcessorPil,)
    whole = True
    margins = ("\n\n", "\n\n")

    def __init__(self, folder: Path, model: Any, vocabulary: TokenVocabulary) -> None:
        super().__init__(folder, model, vocabulary)
        self._config = model.config

    def _pieces(self, image: Image.Image, detail: str) -> Pieces:
        pixels = self._processed(image, do_pan_and_scan=False)["pixel_values"]
        self._check_size(pixels, self._config.vision_config.image_size)
        yield self._config.boi_token_index
        yield View(pixels, self._config.mm_tokens_per_image)
        yield self._config.eoi_token_index

    def _encode(self, pixels: Tensor, view: View) -> Embeddings:
        return Embeddings(self._model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output[0])


class QwenVL(Vision):
    """Qwen2-VL to Qwen3-VL: one view of any size, whose tokens have rows and columns as rotary positions (M-RoPE).

    Qwen3-VL also adds features of inner layers of the encoder to the first layers of the text model.
    """

    processors: ClassVar[tuple[Any, ...]] = (Qwen2VLImageProcessorPil,)
    edges = ("vision_start_token_id", "vision_end_token_id")  # fields of config.json: tokens around a picture

    def __init__(self, folder: Path, model: Any, vocabulary: TokenVocabulary) -> None:
        super().__init__(folder, model, vocabulary)
        self._merge = model.config.vision_config.spatial_merge_size
        self._start, self._end = (getattr(model.config, name) for name in self.edges)
        settings: Any = self._processor
        wanted = self._merge, model.config.vision_config.patch_size
        if (settings.merge_size, settings.patch_size) != wanted:
            found = f"merge_size {settings.merge_size} and patch_size {settings.patch_size}"
            raise EngineError("MODEL_INVALID", f"the image processor has {found}, but the encoder {wanted}")

    def _pieces(self, image: Image.Image, detail: str) -> Pieces:
        found = self._processed(image)
        _, height, width = found["image_grid_thw"][0].tolist()
        rows, columns = height // self._merge, width // self._merge
        patches = found["pixel_values"].to(torch.uint8)
        yield self._start
        yield View(patches.view(len(patches), 3, -1), rows * columns, (rows, columns))
        yield self._end

    def _encode(self, pixels: Tensor, view: View) -> Embeddings:
        rows, columns = view.grid or (0, 0)
        grid = torch.tensor([[1, rows * self._merge, columns * self._merge]], device=self._device)
        found = self._model.get_image_features(pixel_values=pixels.flatten(1), image_grid_thw=grid, return_dict=True)
        deep = getattr(found, "deepstack_features", None)
        row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        return Embeddings(
            found.pooler_output[0],
            torch.stack([torch.zeros_like(row), row, column]).view(3, -1),
            # transformers 5.17 gives a tensor for each layer, later releases one for each picture of a layer.
            torch.stack([layer if isinstance(layer, Tensor) else layer[0] for layer in deep]) if deep else None,
        )


class Glm4v(QwenVL):
    """GLM-4V: as Qwen2.5-VL, between other tokens."""

    processors: ClassVar[tuple[Any, ...]] = (Glm4vImageProcessorPil,)
    edges = ("image_start_token_id", "image_end_token_id")


FAMILIES: dict[str, type[Vision]] = {
    "gemma3": Gemma3,
    "glm4v": Glm4v,
    "idefics3": Idefics3,
    "llava": Llava,
    "qwen2_5_vl": QwenVL,
    "qwen2_vl": QwenVL,
    "qwen3_vl": QwenVL,
    "smolvlm": Idefics3,
}
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
    """Returns the object that scales and encodes pictures for a loaded model; None for a model of text alone.

    Raises EngineError MODEL_INVALID or UNSUPPORTED, with the cause named.
    """
    family = FAMILIES.get(model.config.model_type)
    return family(folder, model, vocabulary) if family else None
