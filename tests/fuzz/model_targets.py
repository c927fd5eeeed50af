"""A model's files as they are inspected before loading: headers, configurations, listings."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from functools import cache

from services.models.descriptor import Format
from services.models.formats.finding import Finding
from services.models.formats.gguf_header import GgufError, read_header_from
from services.models.formats.inspect import inspect
from services.models.formats.safetensors import input_limit
from services.models.hub.source import FileTree
from tests.fuzz.fuzz_target import DECLARED, FuzzTarget
from tests.fuzz.memory_tree import MemoryTree
from tests.models.formats.handmade_models import safetensors
from tests.models.gguf_file import ARRAY, STRING, entry, header, tensor, with_weights

GGUF_WORDS = (
    b"GGUF",
    b"\x03\x00\x00\x00",
    b"general.architecture",
    b"llama",
    b"general.alignment",
    b"llama.pooling_type",
)
JSON_WORDS = tuple(
    f'"{word}"'.encode()
    for word in (
        *("model_type", "architectures", "vocab_size", "text_config", "quantization_config", "auto_map", "dtype"),
        *("weight_map", "shape", "data_offsets", "F32", "BF16", "__metadata__", "_class_name", "UNet2DConditionModel"),
        *("type", "path", "sentence_transformers.models.Dense", "sentence_transformers.models.Pooling", "0_Dense"),
    )
)


def gguf() -> bytes:
    """Returns a small complete file with a value of every kind."""
    entries = [
        entry("general.architecture", STRING, "llama"),
        entry("llama.context_length", 4, 2048),
        entry("general.alignment", 4, 32),
        entry("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "bc"])),
        entry("tokenizer.ggml.scores", ARRAY, (6, [1.0, 2.0])),
        entry("x", 12, 0.5),
    ]
    tensors = [tensor("a", [16], 0, 0), tensor("b", [32, 2], 2, 64)]
    return with_weights(header(*entries, tensors=tensors), 100)


def _gguf(case: bytes) -> None:
    header = read_header_from(io.BytesIO(case), "case.gguf", len(case))
    assert 0 <= header.context_length < 2**31
    assert header.needed >= 0
    assert header.size == len(case)
    _inspect("gguf", MemoryTree({"model.gguf": case}))


def _inspect(format: Format, tree: FileTree) -> Finding:
    finding = inspect(tree, format)
    assert {file.path for file in finding.files} <= tree.files.keys()
    assert finding.context_tokens >= 0
    json.dumps([finding.architecture, finding.primary, sorted(finding.capabilities)]).encode()
    return finding


def _safetensors(case: bytes) -> None:
    _inspect("safetensors", MemoryTree({**text_model(), "model.safetensors": case}))


def replaced(files: Mapping[str, bytes], case: bytes) -> dict[str, bytes]:
    """Reads a file's name, a line end, and its content; returns the files with that one replaced or added."""
    name, _, content = case.partition(b"\n")
    path = name.decode(errors="replace")
    return {**files, path: content} if path else dict(files)


def _text_folder(case: bytes) -> None:
    tree = MemoryTree(replaced(text_model(), case))
    _inspect("safetensors", tree)
    input_limit(tree)


def _whisper_folder(case: bytes) -> None:
    _inspect("whisper", MemoryTree(replaced(whisper_model(), case)))


def _converted_folder(case: bytes) -> None:
    _inspect("whisper", MemoryTree(replaced(converted_model(), case)))


def _pipeline(case: bytes) -> None:
    _inspect("diffusers", MemoryTree(replaced(pipeline(), case)))


def _checkpoint(case: bytes) -> None:
    _inspect("whisper", MemoryTree({"tiny.pt": case}))


@cache
def text_model() -> dict[str, bytes]:
    """An embedding model in two shards, with all the files that are inspected."""
    config = {"model_type": "bert", "architectures": ["BertModel"], "max_position_embeddings": 512, "vocab_size": 9}
    steps = ["Transformer", "Pooling", "Dense"]
    paths = ["", "1_Pooling", "2_Dense"]
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(zip(steps, paths, strict=True))
    ]
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b"{}",
        "modules.json": json.dumps(modules).encode(),
        "sentence_bert_config.json": b'{"max_seq_length": 256, "do_lower_case": false}',
        "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
        "2_Dense/config.json": b'{"in_features": 3, "activation_function": "torch.nn.modules.linear.Identity"}',
        "2_Dense/model.safetensors": safetensors({"linear.weight": ("F32", [2, 3])}),
        "model.safetensors": safetensors({"weight": ("F32", [2, 3])}),
    }


@cache
def whisper_model() -> dict[str, bytes]:
    """A Whisper model as transformers writes it."""
    return {
        "config.json": b'{"model_type": "whisper", "vocab_size": 51865}',
        "tokenizer.json": b'{"version": "1.0"}',
        "preprocessor_config.json": b"{}",
        "model.safetensors": safetensors({"weight": ("BF16", [2, 3])}),
    }


@cache
def converted_model() -> dict[str, bytes]:
    """A Whisper model as CTranslate2 writes it: a variable, and an alias of it."""
    name = b"\x0c\x00WhisperSpec\x00"
    variable = b"\x02\x00a\x00\x01\x04\x00\x00\x00\x00\x10\x00\x00\x00" + bytes(16)
    model = b"\x06\x00\x00\x00" + name + b"\x03\x00\x00\x00\x01\x00\x00\x00" + variable + b"\x01\x00\x00\x00"
    model += b"\x02\x00b\x00\x02\x00a\x00"
    return {"model.bin": model, "config.json": b"{}", "vocabulary.json": b'["a", "b"]'}


@cache
def pipeline() -> dict[str, bytes]:
    """A pipeline of diffusers."""
    index = {
        "_class_name": "StableDiffusionPipeline",
        "scheduler": ["diffusers", "DDIMScheduler"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "safety_checker": [None, None],
    }
    return {
        "model_index.json": json.dumps(index).encode(),
        "scheduler/scheduler_config.json": b"{}",
        "unet/config.json": b"{}",
        "unet/diffusion_pytorch_model.safetensors": safetensors({"weight": ("F32", [2])}),
        "text_encoder/config.json": b"{}",
        "text_encoder/model.safetensors": safetensors({"weight": ("F32", [2])}),
        "tokenizer/tokenizer_config.json": b"{}",
        "tokenizer/vocab.json": b"{}",
    }


def checkpoint() -> bytes:
    """The archive of an OpenAI checkpoint, with a pickle that names dims and a state."""
    pickle = b"\x80\x02}q\x00(X\x04\x00\x00\x00dimsq\x01}q\x02X\x07\x00\x00\x00n_vocabq\x03J\x99\xca\x00\x00s"
    pickle += b"X\x10\x00\x00\x00model_state_dictq\x04}q\x05u."
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny/data.pkl", pickle)
        archive.writestr("tiny/data/0", bytes(8))
    return file.getvalue()


MODEL_TARGETS = (
    FuzzTarget("gguf", _gguf, declared=(*DECLARED, GgufError), words=GGUF_WORDS, cases=1500),
    FuzzTarget("safetensors", _safetensors, words=JSON_WORDS, cases=1000),
    FuzzTarget("text-folder", _text_folder, words=JSON_WORDS, cases=1000),
    FuzzTarget("whisper-folder", _whisper_folder, words=JSON_WORDS, cases=600),
    FuzzTarget("converted-folder", _converted_folder, words=JSON_WORDS, cases=600),
    FuzzTarget("pipeline-folder", _pipeline, words=JSON_WORDS, cases=600),
    FuzzTarget("checkpoint", _checkpoint, words=(b"PK\x01\x02", b"PK\x05\x06", b"data.pkl"), cases=1000),
)
