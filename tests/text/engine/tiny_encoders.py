"""Small random models of every embedding architecture, with a tokenizer of single letters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from services.text.engine.messages import EngineOptions
from tests.late import late

torch = late("torch")
transformers = late("transformers")

LETTERS = "abcdefghijklmnopqrstuvwxyzABCXYZ "
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
PLACES = 64
_SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": PLACES,
    "pad_token_id": 0,
}
_DECODER = {"num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 2, "eos_token_id": 3}
_OWN: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "deberta-v2": {"relative_attention": True, "position_buckets": 16, "pos_att_type": ["p2c", "c2p"]},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "electra": {"embedding_size": 16},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
}


def options(path: Path, **changes: Any) -> EngineOptions:
    """Returns default options for a CPU."""
    usual: dict[str, Any] = {
        "model_id": "tiny",
        "path": str(path),
        "threads": 1,  # the models are tiny
        "gpu": False,
        "context_tokens": 0,
        "kv_tokens": 0,
        "max_sequences": 8,
        "batch_tokens": 2048,
        "chunk_tokens": 512,
        "prefix_cache": False,
    }
    return EngineOptions(**usual | changes)


def write_model(folder: Path, model_type: str, *, decoder: bool = False, **changes: Any) -> Path:
    """Writes a whole model folder: config, random weights, tokenizer."""
    torch.manual_seed(1)
    more = (_DECODER if decoder else {}) | _OWN.get(model_type, {}) | changes
    config = transformers.AutoConfig.for_model(model_type, **_SMALL | more)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    wrapped.save_pretrained(folder)
    return folder


def write_steps(folder: Path, *steps: tuple[str, dict[str, Any]], pooling: Any = "mean", limit: int = 0) -> None:
    """Writes modules.json: a pooling (mode name or whole config), then `steps`, each with its class and config."""
    config = {f"pooling_mode_{pooling}_tokens": True} if isinstance(pooling, str) else pooling
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for number, (kind, content) in enumerate([("Pooling", config), *steps], start=1):
        path = f"{number}_{kind}"
        modules.append(
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        )
        (folder / path).mkdir(parents=True, exist_ok=True)
        (folder / path / "config.json").write_text(json.dumps(content))
    (folder / "modules.json").write_text(json.dumps(modules))
    if limit:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
