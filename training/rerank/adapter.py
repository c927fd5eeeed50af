"""The cross-encoder: MiniLM with a classification head, of which only a small part is trained.

The matrices of the layers get an adapter of low rank (LoRA, https://arxiv.org/abs/2106.09685): W + B A, where only A
[rank, in] and B [out, rank] are trained. Biases, norms, pooler and head are trained whole. The result is a file of 3 MB
that is added to MiniLM's own weights (`services/models/demo/conversion.py`).
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import BertForSequenceClassification

RANK = 32
_WHOLE = ("bias", "LayerNorm.weight", "pooler.dense.weight", "classifier.weight")


class Adapted(torch.nn.Module):
    """A frozen linear layer with an adapter: [..., in] to [..., out]."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.lora_a = torch.nn.Parameter(torch.empty(RANK, layer.in_features))
        self.lora_b = torch.nn.Parameter(torch.zeros(layer.out_features, RANK))
        torch.nn.init.normal_(self.lora_a, std=layer.in_features**-0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns W x + b + B A x."""
        more = torch.nn.functional.linear(torch.nn.functional.linear(inputs, self.lora_a), self.lora_b)
        result: torch.Tensor = self.layer(inputs) + more
        return result


def cross_encoder(folder: Path) -> BertForSequenceClassification:
    """Returns MiniLM as an untrained cross-encoder of one label."""
    # On a CPU the backward pass of torch's own attention takes as long as the rest of a step.
    model = BertForSequenceClassification.from_pretrained(folder, num_labels=1, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith(_WHOLE) and "embeddings" not in name
    for layer in model.bert.encoder.layer:
        for owner, name in (
            (layer.attention.self, "query"),
            (layer.attention.self, "key"),
            (layer.attention.self, "value"),
            (layer.attention.output, "dense"),
            (layer.intermediate, "dense"),
            (layer.output, "dense"),
        ):
            setattr(owner, name, Adapted(getattr(owner, name)))
    return model


def save_adapter(model: BertForSequenceClassification, path: Path) -> None:
    """Writes the trained parameters in half precision, under the names that they have in the merged model."""
    trained = {
        name.replace(".layer.weight", ".weight").replace(".layer.bias", ".bias"): parameter.detach().half().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    save_file(trained, path)
