"""Writers of valid and broken models, and trees that record reads."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from services.errors import AllmError, ModelInvalid
from services.models.formats.finding import Finding
from services.models.formats.inspect import inspect
from services.models.hub.source import LocalTree
from tests.models.gguf_file import STRING, entry, header, tensor, with_weights

BITS = {"F32": 32, "BF16": 16, "F16": 16, "I64": 64, "U8": 8, "BOOL": 8, "F4": 4, "F8_E4M3": 8}
# Written next to a model by another program; inspections ignore it.
LIE = {"format": "gguf", "architecture": "nonsense", "modality": "audio", "files": ["other.gguf"], "primary": "x"}


def local(folder: Path) -> LocalTree:
    """Returns the folder as a tree."""
    return LocalTree(folder, [folder])


def paths(finding: Finding) -> list[str]:
    """Returns the paths of a finding's files."""
    return [file.path for file in finding.files]


def refusal(folder: Path, format: str, file: str = "", kind: type[AllmError] = ModelInvalid) -> str:
    """Returns the message of an inspection that must fail."""
    with pytest.raises(kind) as caught:
        inspect(local(folder), format, file)  # type: ignore[arg-type]
    assert type(caught.value) is kind
    return caught.value.message


def damaged(whole: bytes, count: int, *, seed: int, start: int = 0) -> Iterator[bytes]:
    """Yields `count` copies of a file, each with one to four random bytes at random places from `start` on."""
    rng = random.Random(seed)  # noqa: S311
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(start, len(data))] = rng.randrange(256)
        yield bytes(data)


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def safetensors(tensors: Mapping[str, tuple[str, Sequence[int]]], **metadata: str) -> bytes:
    """Encodes a file with these tensors (type and shape), all zeros."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        numbers = 1
        for size in shape:
            numbers *= size
        end = at + numbers * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    return with_header(json.dumps(entries), at)


def with_header(text: str | bytes, weights: int) -> bytes:
    """Encodes a file with that header and `weights` bytes of weights."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data + bytes(weights)


def write_safetensors(path: Path, *names: str) -> None:
    """Writes a file with small tensors of these names, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors({name: ("F32", [2, 3]) for name in names or ("weight",)}))


def write_shards(folder: Path, count: int = 3, stem: str = "model") -> list[str]:
    """Writes shards of two tensors each, and their index. Returns the names of the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = [f"{stem}-{one:05}-of-{count:05}.safetensors" for one in range(1, count + 1)]
    for shard in shards:
        write_safetensors(folder / shard, f"{shard}.a", f"{shard}.b")
    weight_map = {f"{shard}.{each}": shard for shard in shards for each in "ab"}
    write_json(folder / f"{stem}.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": weight_map})
    return shards


def write_text_model(folder: Path, **config: object) -> Path:
    """Writes a complete safetensors folder with a misleading metadata.json."""
    said = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096} | config
    write_json(folder / "config.json", said)
    write_json(folder / "tokenizer.json", {"version": "1.0"})
    write_json(folder / "metadata.json", LIE)
    write_safetensors(folder / "model.safetensors")
    return folder


def write_gguf(path: Path, *entries: bytes, architecture: str = "llama", weights: int = 128, cut: int = 0) -> Path:
    """Writes a GGUF file with two tensors; `cut` bytes are missing at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    said = (entry("general.architecture", STRING, architecture), entry(f"{architecture}.context_length", 4, 2048))
    head = header(*said, *entries, tensors=[tensor("a", [16], 0, 0), tensor("b", [16], 0, 64)])
    data = with_weights(head, weights)
    path.write_bytes(data[: len(data) - cut])
    return path


def write_split(folder: Path, stem: str = "m", count: int = 3) -> list[str]:
    """Writes a split GGUF model. Returns the names."""
    names = [f"{stem}-{one:05}-of-{count:05}.gguf" for one in range(1, count + 1)]
    for number, name in enumerate(names):
        write_gguf(folder / name, *split_entries(number, count))
    return names


def split_entries(number: int, count: int, tensors: int | None = None) -> list[bytes]:
    """Returns a shard's split metadata; `number` counts from 0."""
    total = 2 * count if tensors is None else tensors
    return [entry("split.no", 2, number), entry("split.count", 2, count), entry("split.tensors.count", 5, total)]


def checkpoint_pickle(*, vocabulary: int | None = 51865, extra: bytes = b"") -> bytes:
    """Encodes the operations of an OpenAI checkpoint's pickle by hand."""

    def word(content: str) -> bytes:
        return b"X" + struct.pack("<I", len(content)) + content.encode() + b"q\x00"

    dims = b"}" if vocabulary is None else b"}" + word("n_vocab") + b"J" + struct.pack("<i", vocabulary) + b"s"
    storage = b"(" + word("storage") + b"ctorch\nHalfStorage\n" + word("0") + word("cpu") + b"K\x06tQ"
    numbers = b"K\x00K\x02K\x03\x86K\x03K\x01\x86\x89ccollections\nOrderedDict\n)R"
    weight = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + numbers + b"tR"
    state = b"}" + word("encoder.conv1.weight") + weight + b"s"
    return b"\x80\x02}" + word("dims") + dims + b"s" + word("model_state_dict") + state + b"s" + extra + b"."


def checkpoint(
    pickled: bytes | None = None, members: Mapping[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED
) -> bytes:
    """Encodes an OpenAI checkpoint file."""
    content = {"archive/data.pkl": checkpoint_pickle() if pickled is None else pickled, "archive/data/0": bytes(12)}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in (content | dict(members or {})).items():
            archive.writestr(name, data)
    return file.getvalue()


def ctranslate2(name: str = "WhisperSpec", version: int = 6, variables: int = 3) -> bytes:
    """Encodes a model file of CTranslate2."""

    def word(content: str) -> bytes:
        return struct.pack("<H", len(content) + 1) + content.encode() + b"\0"

    data = struct.pack("<I", version) + word(name) + struct.pack("<II", 3, variables)
    for at in range(variables):
        data += word(f"layer_{at}/weight") + struct.pack("<BII", 2, 4, 5) + struct.pack("<BI", 0, 80) + bytes(80)
    return data + struct.pack("<I", 1) + word("alias") + word("layer_0/weight")


def write_ctranslate2(folder: Path, tokens: int = 51865) -> Path:
    """Writes a complete CTranslate2 folder."""
    write_json(folder / "config.json", {"suppress_ids": [], "lang_ids": [50259]})
    write_json(folder / "vocabulary.json", [str(at) for at in range(tokens)])
    write_json(folder / "tokenizer.json", {})
    write_json(folder / "metadata.json", LIE)
    (folder / "model.bin").write_bytes(ctranslate2())
    return folder


def write_whisper(folder: Path, vocabulary: int = 51865) -> Path:
    """Writes a complete Whisper folder in transformers' layout."""
    write_text_model(
        folder, model_type="whisper", architectures=["WhisperForConditionalGeneration"], vocab_size=vocabulary
    )
    write_json(folder / "preprocessor_config.json", {})
    return folder


def write_pipeline(folder: Path) -> Path:
    """Writes a complete diffusers pipeline."""
    index = {
        "_class_name": "StableDiffusionPipeline",
        "_diffusers_version": "0.30.0",
        "feature_extractor": [None, None],
        "requires_safety_checker": False,
        "scheduler": ["diffusers", "DDIMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    write_json(folder / "model_index.json", index)
    write_json(folder / "metadata.json", LIE)
    write_json(folder / "scheduler/scheduler_config.json", {})
    write_json(folder / "tokenizer/vocab.json", {})
    (folder / "tokenizer/merges.txt").write_text("#version: 0.2\n")
    for name, stem in (("text_encoder", "model"), ("unet", UNET), ("vae", UNET)):
        write_json(folder / name / "config.json", {})
        write_safetensors(folder / name / f"{stem}.safetensors")
    return folder


UNET = "diffusion_pytorch_model"


class WatchedTree(LocalTree):
    """A folder that poses as a hub repository, returns its files in small chunks, and records the reads."""

    repository = "org/name"
    revision = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [folder])
        self.folder = ""
        self.opened: list[str] = []
        self.bytes_read = 0

    def open(self, path: str) -> BinaryIO:
        """Opens one of the files."""
        self.opened.append(path)
        return _Watched(super().open(path), self._note)  # type: ignore[return-value]

    def _note(self, count: int) -> None:
        self.bytes_read += count


class _Watched(io.RawIOBase):
    def __init__(self, file: BinaryIO, note: Callable[[int], None]) -> None:
        self._inner = file
        self._note = note

    def read(self, size: int = -1, /) -> bytes:
        data = self._inner.read(min(size, 1000) if size >= 0 else 1000)
        self._note(len(data))
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._inner.close()
        super().close()
