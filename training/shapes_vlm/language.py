"""SmolLM2-135M-Instruct, frozen: its embeddings, its tokenizer and its layers in bfloat16."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, LlamaForCausalLM, LlavaConfig

from training.shapes_vlm.architecture import configuration
from training.shapes_vlm.dialogue import IGNORED, Batch

HIDDEN = -1e9  # added to the attention score of a token that is not visible


@dataclass(frozen=True)
class Language:
    """The language model and what belongs to it."""

    config: LlavaConfig
    tokenizer: Tokenizer
    model: LlamaForCausalLM

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Loads a folder of safetensors. Raises OSError."""
        model = LlamaForCausalLM.from_pretrained(
            folder,
            dtype=torch.bfloat16,
            attn_implementation="eager",  # for so short rows twice as fast on a CPU
        )
        model.eval().requires_grad_(False)
        text = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return cls(configuration(text), Tokenizer.from_file(str(folder / "tokenizer.json")), model)

    def embeddings(self, words: list[str]) -> Tensor:
        """Returns the embeddings of words of one token each: float [words, hidden]."""
        tokens = [self.tokenizer.encode(word).ids for word in words]
        if any(len(each) != 1 for each in tokens):
            raise ValueError(f"words of more than one token: {words}")
        return self.model.get_input_embeddings().weight[[each[0] for each in tokens]].float()

    @torch.no_grad()
    def opening(self, tokens: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Computes each layer's keys and values [1, heads, tokens, head size] of a conversation's first tokens."""
        cache = self.model.model(torch.tensor([tokens]), use_cache=True).past_key_values
        return [(layer.keys, layer.values) for layer in cache.layers]

    def loss(self, batch: Batch, pictures: Tensor, opening: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Returns the cross entropy of the answers; pictures [n, TOKENS, hidden] are embeddings."""
        rows = len(batch.tokens)
        seen = batch.tokens < 0
        text = self.model.get_input_embeddings()(batch.tokens.clamp(min=0))
        eyes = pictures.to(text.dtype).flatten(0, 1)[(-1 - batch.tokens).clamp(min=0)]
        cache = DynamicCache()
        for index, (keys, values) in enumerate(opening):
            cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), index)
        hidden = self.model.model(
            inputs_embeds=torch.where(seen[..., None], eyes, text),
            attention_mask=torch.where(batch.visible, 0.0, HIDDEN).to(text.dtype),
            position_ids=batch.positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        learned = batch.labels != IGNORED
        return functional.cross_entropy(self.model.lm_head(hidden[learned]).float(), batch.labels[learned])
