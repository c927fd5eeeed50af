"""Pictures for models that see, by vLLM's own processors: their tokens in a prompt, and the encoder's input.

vLLM encodes a picture in the step that first needs its tokens, and keeps the embeddings for later requests.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.models.pixtral import image_processing_pil_pixtral
from transformers.utils.import_utils import is_torchvision_available
from vllm import ModelRegistry
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.encoder_budget import get_mm_max_toks_per_item
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.utils.jsontree import json_iter_leaves

from services.text.engine.messages import Pixels
from services.text.engine.runtime import PicturePart, picture_token
from services.text.engine.runtimes.torch.vision import LONGEST_PADDED, HeldPictures, image_of, unscalable

IMAGE = "image"  # vLLM's name of the modality
# A module of transformers that needs torchvision. vLLM's models only take functions from it that the module for Pillow
# has as well.
_REPLACED = "transformers.models.pixtral.image_processing_pixtral"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Placed:
    """A picture as vLLM takes it."""

    tokens: list[int]  # of the vocabulary, in the places of the picture's tokens
    item: Any  # MultiModalKwargsItem: the input of the encoder
    embedded: Tensor | None  # bool [tokens]: which of the tokens have embeddings; None: all
    digest: str


class Vision:
    """The picture processor of a loaded model."""

    def __init__(self, config: Any) -> None:
        """Takes vLLM's configuration. Raises vLLM's and transformers' own errors for files that do not fit."""
        self._processor: Any = MULTIMODAL_REGISTRY.create_processor(config.model_config)
        info = self._processor.info
        text = self._processor.dummy_inputs.get_dummy_text({IMAGE: 1})
        self._placeholder: list[int] = info.get_tokenizer().encode(text, add_special_tokens=False)
        self._held = HeldPictures()
        self._pads = bool(getattr(info.get_hf_processor().image_processor, "do_pad", False))
        self.most_tokens = int(get_mm_max_toks_per_item(self._processor, {IMAGE: 1}, None)[IMAGE])

    def see(self, pixels: Pixels) -> tuple[list[int], list[PicturePart]]:
        """Returns the tokens that stand for a picture in a prompt, and it as one part, scaled for the encoder.

        Raises EngineError: INVALID_REQUEST for a picture that cannot be scaled, OVERLOADED if too many wait.
        """
        image = image_of(pixels)
        if self._pads:
            image.thumbnail((LONGEST_PADDED, LONGEST_PADDED))
        digest = pixels.digest
        try:
            items = self._processor.info.parse_mm_data({IMAGE: [image]})
            found = self._processor(self._placeholder, items, {IMAGE: [digest.hex()]})
        except ValueError as error:
            raise unscalable(pixels, error.__cause__ or error) from error
        tokens: list[int] = list(found["prompt_token_ids"])
        (place,) = found["mm_placeholders"][IMAGE]
        (item,) = found["mm_kwargs"][IMAGE]
        start, end = place.offset, place.offset + place.length
        placed = Placed(tokens[start:end], item, place.is_embed, digest.hex())
        size = sum(tensor.nbytes for tensor in json_iter_leaves(item.get_data()) if isinstance(tensor, Tensor))
        self._held.hold({placed: size}, pixels.param)
        tokens[start:end] = [picture_token(digest, 0)] * place.length
        return tokens, [PicturePart(start, place.length, placed)]


def with_pictures(
    tokens: list[int], parts: Sequence[PicturePart], client: str | None
) -> tuple[list[int], list[MultiModalFeatureSpec]]:
    """Returns a prompt in tokens of the vocabulary, and its pictures.

    vLLM reuses cells and embeddings of equal pictures of the same `client`.
    """
    prompt, features = list(tokens), []
    for part in parts:
        placed: Placed = part.source
        prompt[part.start : part.end] = placed.tokens
        position = PlaceholderRange(part.start, part.count, placed.embedded)
        name = f"{placed.digest} {client or ''}"
        features.append(MultiModalFeatureSpec(placed.item, IMAGE, name, position, name))
    return prompt, features


def use_pillow(architectures: Collection[str]) -> bool:
    """Makes vLLM's classes of models that see usable without torchvision. Returns False if torchvision is installed.

    vLLM inspects a class in another process, where nothing is replaced, unless it is registered as it is.
    """
    if is_torchvision_available():
        return False
    sys.modules[_REPLACED] = image_processing_pil_pixtral
    for architecture in architectures:
        if model := ModelRegistry.models.get(architecture):
            ModelRegistry.register_model(architecture, model.load_model_cls())
    return True
