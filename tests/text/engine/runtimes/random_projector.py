"""A random picture encoder for the demo model, as transformers computes it and as a projector's GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.late import late

torch = late("torch")
transformers = late("transformers")

WIDTH = 576  # of the demo model
SIDE, PATCH, LAYERS, HIDDEN = 64, 16, 3, 48
TOKENS = (SIDE // PATCH) ** 2
MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
# Names of tensors: transformers' and libmtmd's.
_NAMES = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "encoder.layers": "v.blk",
    "pre_layrnorm": "v.pre_ln",
    "embeddings.class_embedding": "v.class_embd",
}


class RandomProjector:
    """An encoder up to the layer before the last one, and LLaVA's projector."""

    def __init__(self, kind: str = "siglip") -> None:
        """`kind`: siglip, or clip, which has a class embedding before the patches."""
        torch.manual_seed(3)
        self._clip = kind == "clip"
        shape = {
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 3,
            "image_size": SIDE,
            "patch_size": PATCH,
        }
        if self._clip:
            self._tower = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**shape)).eval()
        else:
            config = transformers.SiglipVisionConfig(**shape, vision_use_head=False)
            self._tower = transformers.SiglipVisionModel(config).eval()
        self._first, self._second = torch.nn.Linear(HIDDEN, 80), torch.nn.Linear(80, WIDTH)
        for one in (*self._tower.parameters(), *self._first.parameters(), *self._second.parameters()):
            torch.nn.init.normal_(one, std=0.2)

    def embeddings(self, pixels: bytes) -> np.ndarray[Any, Any]:
        """Returns the embeddings [tokens, width] of a picture of SIDE x SIDE pixels."""
        values = torch.tensor(np.frombuffer(pixels, np.uint8).reshape(SIDE, SIDE, 3) / 255)
        scaled = ((values - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1)[None].float()
        with torch.inference_mode():
            hidden = self._tower(scaled, output_hidden_states=True).hidden_states[-2][:, int(self._clip) :]
            found = self._second(torch.nn.functional.gelu(self._first(hidden), approximate="tanh"))
        embeddings: np.ndarray[Any, Any] = found[0].numpy()
        return embeddings

    def write(self, path: Path, projector: str = "mlp") -> Path:
        """Writes the projector's file."""
        writer = gguf.GGUFWriter(path, "clip")
        writer.add_type("mmproj")
        writer.add_clip_has_vision_encoder(True)
        writer.add_clip_projector_type(projector)
        writer.add_vision_use_gelu(not self._clip)
        for name, value in (
            ("image_size", SIDE),
            ("patch_size", PATCH),
            ("embedding_length", HIDDEN),
            ("feed_forward_length", 2 * HIDDEN),
            ("block_count", LAYERS),
            ("attention.head_count", 3),
            ("projection_dim", WIDTH),
        ):
            writer.add_uint32(f"clip.vision.{name}", value)
        writer.add_float32("clip.vision.attention.layer_norm_epsilon", self._tower.config.layer_norm_eps)
        writer.add_array("clip.vision.image_mean", list(MEAN))
        writer.add_array("clip.vision.image_std", list(STD))
        for name, tensor in self._tower.state_dict().items():
            if "post_layernorm" not in name and "position_ids" not in name:
                writer.add_tensor(_named(name), tensor.numpy())
        for number, linear in ((0, self._first), (2, self._second)):
            for name, tensor in linear.state_dict().items():
                writer.add_tensor(f"mm.{number}.{name}", tensor.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _named(name: str) -> str:
    name = name.removeprefix("vision_model.")
    for theirs, ours in _NAMES.items():
        name = name.replace(theirs, ours)
    return name
