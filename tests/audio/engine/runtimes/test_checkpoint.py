"""Weights from OpenAI's checkpoints and from transformers' folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from services.worker.messages import EngineError
from tests.audio.engine.runtimes.hub_folder import write_hub_folder
from tests.audio.engine.runtimes.spoken import encoded, mels, options, same, step
from tests.late import late
from tests.whisper_weights import tiny_en_ct2, tiny_en_pt

checkpoint = late("services.audio.engine.runtimes.checkpoint")
safetensors_torch = late("safetensors.torch")
torch = late("torch")
whisper_runtime = late("services.audio.engine.runtimes.whisper")


@pytest.fixture(scope="module")
def stored() -> checkpoint.Checkpoint:
    return checkpoint.read_checkpoint(tiny_en_pt())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, stored: checkpoint.Checkpoint) -> Path:
    """Stores the model as transformers does, in two files."""
    return write_hub_folder(tmp_path_factory.mktemp("hub"), stored, tiny_en_ct2() / "tokenizer.json", shards=2)


def same_tensors(one: checkpoint.Checkpoint, other: checkpoint.Checkpoint) -> bool:
    return one.tensors.keys() == other.tensors.keys() and all(
        torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items()
    )


def test_a_transformers_folder_holds_the_same_model(stored: checkpoint.Checkpoint, folder: Path) -> None:
    found = checkpoint.read_checkpoint(folder)
    assert found.dimensions == stored.dimensions
    assert same_tensors(found, stored)
    assert found.alignment_heads == stored.alignment_heads
    assert [found.vocabulary.piece(token) for token in range(100)] == [stored.vocabulary.piece(t) for t in range(100)]


def test_both_are_loaded(folder: Path, openai_whisper: whisper_runtime.OpenAIWhisper) -> None:
    loaded = whisper_runtime.OpenAIWhisper(options(folder), lambda _: None)
    start = loaded.vocabulary.start("en", "transcribe")
    (found,) = loaded.decode(loaded.encode(mels()[:1]), [start], step(max_tokens=8))
    (wanted,) = openai_whisper.decode(encoded(openai_whisper)[:1], [start], step(max_tokens=8))
    assert same(found, wanted)


def test_a_folder_with_one_checkpoint_is_that_checkpoint(tmp_path: Path, stored: checkpoint.Checkpoint) -> None:
    (tmp_path / "mine.pt").symlink_to(tiny_en_pt())
    found = checkpoint.read_checkpoint(tmp_path)
    assert same_tensors(found, stored)
    assert found.alignment_heads == stored.alignment_heads, "its size says which model it is"


def test_unmeasured_heads_are_the_upper_half(tmp_path: Path, stored: checkpoint.Checkpoint) -> None:
    size = vars(stored.dimensions) | {"n_text_layer": 2}
    kept = {name: tensor for name, tensor in stored.tensors.items() if not name.startswith("decoder.blocks.2")}
    torch.save({"dims": size, "model_state_dict": kept}, tmp_path / "distilled.pt")
    assert checkpoint.read_checkpoint(tmp_path / "distilled.pt").alignment_heads == [(1, head) for head in range(6)]


class Unwanted:
    """Lists contents that a checkpoint must not have."""


def test_damaged_and_hostile_checkpoints_are_named(tmp_path: Path, stored: checkpoint.Checkpoint) -> None:
    path = tmp_path / "cut.pt"
    path.write_bytes(tiny_en_pt().read_bytes()[:10_000_000])
    _refused(path, r"cut\.pt is not a Whisper checkpoint")
    torch.save({"dims": vars(stored.dimensions), "model_state_dict": {}, "more": Unwanted()}, path)
    _refused(path, r"cut\.pt is not a Whisper checkpoint: it names .*Unwanted, and only tensors may be in it")
    torch.save({"dims": vars(stored.dimensions)}, path)
    _refused(path, r"cut\.pt is not a Whisper checkpoint")
    torch.save({"dims": vars(stored.dimensions) | {"n_mels": 0}, "model_state_dict": {}}, path)
    _refused(path, r"cut\.pt: n_mels must be 1 to")
    torch.save({"dims": vars(stored.dimensions) | {"n_vocab": 5000}, "model_state_dict": {}}, path)
    _refused(path, "not the vocabulary of a Whisper model of 5000 tokens")


def test_weights_that_do_not_fit_are_named(tmp_path: Path, stored: checkpoint.Checkpoint) -> None:
    tensors = dict(stored.tensors)
    path = tmp_path / "wrong.pt"
    del tensors["decoder.ln.weight"]
    torch.save({"dims": vars(stored.dimensions), "model_state_dict": tensors}, path)
    _not_loaded(path, r"wrong\.pt do not match its dimensions: .*ln\.weight")
    tensors["decoder.ln.weight"] = torch.zeros(7)
    torch.save({"dims": vars(stored.dimensions), "model_state_dict": tensors}, path)
    _not_loaded(path, r"wrong\.pt do not match its dimensions: .*ln\.weight")


def test_wrong_folders_are_named(tmp_path: Path, folder: Path) -> None:
    wrong = tmp_path / "hub"
    shutil.copytree(folder, wrong)
    (wrong / "model-2.safetensors").write_bytes((folder / "model-2.safetensors").read_bytes()[:1000])
    _refused(wrong, r"model-2\.safetensors cannot be read")
    (wrong / "model-2.safetensors").unlink()
    _refused(wrong, r"model-2\.safetensors is missing")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.decoder.layer_norm.weight"] = "../elsewhere.safetensors"
    (wrong / "model.safetensors.index.json").write_text(json.dumps(index))
    _refused(wrong, r"names '\.\./elsewhere\.safetensors'")
    (wrong / "tokenizer.json").unlink()
    _refused(wrong, r"tokenizer\.json is missing")
    config = json.loads((folder / "config.json").read_text())
    _with_config(wrong, {name: value for name, value in config.items() if name != "d_model"})
    _refused(wrong, r"config\.json lacks d_model")
    _with_config(wrong, config | {"activation_function": "relu"})
    _refused(wrong, "gelu", code="UNSUPPORTED")
    safetensors_torch.save_file({"x": torch.zeros(1)}, wrong / "model.safetensors")
    shutil.copy(folder / "tokenizer.json", wrong)
    _with_config(wrong, config)
    _not_loaded(wrong, "do not match its dimensions")


def _with_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config))


def _refused(path: Path, words: str, code: str = "MODEL_INVALID") -> None:
    with pytest.raises(EngineError, match=words) as caught:
        checkpoint.read_checkpoint(path)
    assert caught.value.code == code


def _not_loaded(path: Path, words: str) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        whisper_runtime.OpenAIWhisper(options(path), lambda _: None)
    assert caught.value.code == "MODEL_INVALID"
