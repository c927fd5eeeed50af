"""The two trained parts in LLaVA's architecture: a small vision tower and the projector into SmolLM2's embeddings.

The tower is SigLIP's, not CLIP's: llama.cpp puts CLIP's class token behind the patches and then drops the first patch.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import LlavaConfig, SiglipVisionConfig, SiglipVisionModel
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from training.shapes_sd.drawing import SIDE

PATCH = 16  # side of a patch in pixels; each becomes a token
TOKENS = (SIDE // PATCH) ** 2  # of a picture
WIDTH = 256
LAYERS = 6  # trained layers. One more exists, untrained: LLaVA reads the last but one
MEAN = (0.48145466, 0.4578275, 0.40821073)  # CLIP's, which llama.cpp pads with
DEVIATION = (0.26862954, 0.26130258, 0.27577711)
IMAGE_TOKEN = "<empty_output>"  # noqa: S105 (SmolLM2 has this token and no text for it)
IMAGE_TOKEN_ID = 16


class Eyes(nn.Module):
    """The vision tower and the projector, with the names of their tensors in LlavaForConditionalGeneration."""

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        self.vision_tower = SiglipVisionModel(config.vision_config)
        self.multi_modal_projector = LlavaMultiModalProjector(config)
        # A token is known by its position alone: with SigLIP's own start, 16 times smaller, learning takes far longer.
        nn.init.normal_(self.vision_tower.embeddings.position_embedding.weight)
        spare = self.vision_tower.encoder.layers[LAYERS]
        for parameter in spare.parameters():
            nn.init.zeros_(parameter)
        spare.requires_grad_(False)
        self.vision_tower.post_layernorm.requires_grad_(False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Maps pictures float [n, 3, 64, 64], normalised, to embeddings [n, TOKENS, hidden size of SmolLM2]."""
        return self.multi_modal_projector(self.look(pictures))

    def look(self, pictures: Tensor) -> Tensor:
        """Maps pictures to the tower's output [n, TOKENS, WIDTH]."""
        hidden = self.vision_tower.embeddings(pictures)
        for layer in self.vision_tower.encoder.layers[:LAYERS]:
            hidden = layer(hidden, None)
        return hidden


def configuration(text: dict[str, Any]) -> LlavaConfig:
    """Returns the whole model's configuration; `text` is SmolLM2's."""
    vision = SiglipVisionConfig(
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS + 1,
        num_attention_heads=WIDTH // 64,
        image_size=SIDE,
        patch_size=PATCH,
        hidden_act="gelu_pytorch_tanh",  # llama.cpp's GELU
        vision_use_head=False,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE_TOKEN_ID,
        image_seq_length=TOKENS,
        vision_feature_layer=-2,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
