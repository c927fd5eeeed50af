"""Embedding models: the known modules, the input length, and models that only rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.errors import ModelInvalid, Unsupported
from services.models.formats.inspect import inspect
from tests.case import case
from tests.models.formats.handmade_models import local, write_gguf, write_json, write_text_model
from tests.models.gguf_file import entry


def write_encoder(folder: Path, *kinds: str) -> Path:
    write_text_model(folder, model_type="bert", architectures=["BertModel"], max_position_embeddings=512)
    modules = [{"path": f"{number}_{kind}" * (number > 0), "type": f"x.{kind}"} for number, kind in enumerate(kinds)]
    for module in modules:
        write_json(folder / module["path"] / "config.json", {"model_type": "bert"}) if module["path"] else None
    write_json(folder / "modules.json", modules)
    return folder


def test_steps_that_are_known(tmp_path: Path) -> None:
    found = inspect(local(write_encoder(tmp_path, "Transformer", "Pooling", "Normalize")), "safetensors")
    assert (found.capabilities, found.context_tokens) == (frozenset({"embeddings"}), 512)


@pytest.mark.parametrize("kind", ["LSTM", "SpladePooling", "StaticEmbedding"])
def test_steps_that_are_not_known_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    write_encoder(tmp_path, "Transformer", "Pooling", kind)
    with pytest.raises(
        Unsupported, match=f"a module '{kind}'; known are Transformer, Pooling, Dense, Normalize"
    ) as told:
        inspect(local(tmp_path), "safetensors")
    assert (told.value.param, told.value.http_status) == ("source", 400)


def test_its_makers_may_set_a_lower_limit(tmp_path_factory: pytest.TempPathFactory) -> None:
    for said, tokens in [(256, 256), (None, 512), (0, 512), (-1, 512), ("x", 512), (True, 512)]:
        with case(said=said, tokens=tokens):
            tmp_path = tmp_path_factory.mktemp("case")
            write_encoder(tmp_path, "Transformer", "Pooling")
            write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": said})
            assert inspect(local(tmp_path), "safetensors").context_tokens == tokens


def test_a_limit_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_encoder(tmp_path, "Transformer", "Pooling")
    (tmp_path / "sentence_bert_config.json").write_text("{")
    with pytest.raises(ModelInvalid, match=r"sentence_bert_config\.json"):
        inspect(local(tmp_path), "safetensors")


def test_a_model_that_ranks_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", entry("bert.pooling_type", 4, 4), architecture="bert")
    with pytest.raises(Unsupported, match="ranks texts") as told:
        inspect(local(tmp_path), "gguf")
    assert told.value.http_status == 400
