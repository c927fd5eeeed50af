"""Registration through the gateway, with real files: accepted models, refused models and the error messages."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from tests.demo_model import demo_model
from tests.operator_side import Operator
from tests.registration.model_folders import (
    ctranslate2_whisper,
    diffusers_model,
    evil_checkpoint,
    gguf_of,
    safetensors_model,
    sharded_model,
    weights,
    write_json,
)
from tests.stack import ALIAS, MODEL

SECOND = "model-00002-of-00002.safetensors"


def link_demo(folder: Path, name: str = "demo.gguf") -> Path:
    """Hard-links the demo model into `folder`, or copies it to another disk."""
    os.link(demo_model(), folder / name) if same_disk(folder) else shutil.copy(demo_model(), folder / name)
    return folder / name


def same_disk(folder: Path) -> bool:
    return folder.stat().st_dev == demo_model().stat().st_dev


# --- accepted models


def test_a_gguf_is_registered_ready_and_answers_at_once(operator: Operator, folder: Path) -> None:
    model = operator.taken("org/my-model", link_demo(folder), "gguf", aliases=["gpt-4.1", "my:latest"])
    assert (model["id"], model["format"], model["modality"]) == ("org/my-model", "FORMAT_GGUF", "MODALITY_TEXT")
    assert model["architecture"] == "llama"
    assert model["generation"] == "1"
    assert "revision" not in model or model["revision"] == ""
    shown = operator.until_state("org/my-model", "ready")
    assert shown["aliases"] == ["gpt-4.1", "my:latest"]
    assert shown["replicas"][0]["runtime"] == "llama_cpp"
    assert {"org/my-model", "gpt-4.1", "my:latest"} <= set(operator.ready())
    assert "Paris" in operator.answer("org/my-model")
    assert "Paris" in operator.answer("my:latest")
    assert operator.until_state("org/my-model", "loaded")["replicas"][0]["state"] == "loaded"


def test_the_official_sdk_lists_retrieves_and_deletes(operator: Operator, folder: Path) -> None:
    operator.taken("org/sdk", link_demo(folder), "gguf")
    operator.until_state("org/sdk", "ready")
    client = openai.OpenAI(base_url=operator.stack.base_url, api_key="unused", max_retries=0)
    assert {"org/sdk", MODEL, ALIAS} <= {model.id for model in client.models.list()}
    model = client.models.retrieve("org/sdk")
    assert (model.id, model.object, model.owned_by) == ("org/sdk", "model", "allm")
    deleted = client.models.delete("org/sdk")
    assert (deleted.id, deleted.object, deleted.deleted) == ("org/sdk", "model", True)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/sdk")
    with pytest.raises(openai.NotFoundError):
        client.models.delete("org/sdk")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="org/sdk", messages=[{"role": "user", "content": "x"}])
    assert (folder / "demo.gguf").exists(), "the files of a local source are the operator's"


@pytest.mark.parametrize(
    ("make", "format", "reason"),
    [
        (safetensors_model, "safetensors", "architecture 'exotic9000' is not supported by torch"),
        (sharded_model, "safetensors", "architecture 'exotic9000' is not supported by torch"),
        (ctranslate2_whisper, "whisper", "no audio service is running"),
        (diffusers_model, "diffusers", "no image service is running"),
    ],
)
def test_model_without_a_live_service_is_registered_and_never_ready(
    operator: Operator, folder: Path, make: Callable[[Path], Path], format: str, reason: str
) -> None:
    model = operator.taken("m", make(folder), format)
    assert model["state"] == "MODEL_STATE_UNSUPPORTED"
    shown = operator.until_state("m", "unsupported")
    assert reason in shown["reason"]
    assert shown["format"] == format
    assert "m" not in operator.ready()
    retrieved = operator.call("GET", "/v1/models/m")
    assert (retrieved.status, retrieved.error["code"]) == (404, "model_not_found")
    assert reason in retrieved.error["message"]
    asked = operator.chat("m")
    assert asked.status in (400, 501)


def test_an_unknown_architecture_is_unsupported_by_name(operator: Operator, folder: Path) -> None:
    path = folder / "odd.gguf"
    path.write_bytes(gguf_of("exotic-9000"))
    operator.taken("odd", path, "gguf")
    shown = operator.until_state("odd", "unsupported")
    assert "'exotic-9000' is not supported by llama_cpp" in shown["reason"]
    reply = operator.chat("odd")
    assert (reply.status, reply.error["code"]) == (501, "unsupported")
    assert "exotic-9000" in reply.error["message"]


# --- the format is declared, not guessed; no private metadata


def test_a_lying_metadata_json_is_neither_read_nor_written(operator: Operator, folder: Path) -> None:
    lie = json.dumps({"format": "safetensors", "engine": "safetensors_cpp", "modality": "image", "primary": "x"})
    (folder / "metadata.json").write_text(lie)
    link_demo(folder)
    safetensors_model(folder / "other")
    operator.taken("honest", folder / "demo.gguf", "gguf")
    shown = operator.until_state("honest", "ready")
    assert (shown["format"], shown["modality"], shown["runtime"]) == ("gguf", "text", "llama_cpp")
    assert "Paris" in operator.answer("honest")
    assert (folder / "metadata.json").read_text() == lie
    assert not (folder / "other" / "metadata.json").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["demo.gguf", "metadata.json", "other"]


def test_another_format_in_the_folder_changes_nothing(operator: Operator, folder: Path) -> None:
    link_demo(folder)
    safetensors_model(folder)
    operator.taken("as-gguf", folder, "gguf")
    operator.taken("as-safetensors", folder, "safetensors")
    assert operator.until_state("as-gguf", "ready")["format"] == "gguf"
    assert operator.until_state("as-safetensors", "unsupported")["format"] == "safetensors"


def test_a_gguf_is_no_stand_in_for_broken_safetensors(operator: Operator, folder: Path) -> None:
    link_demo(folder)
    assert "config.json" in operator.refused("m", folder, "safetensors")


def test_the_format_of_a_registration_never_changes(operator: Operator, folder: Path) -> None:
    link_demo(folder)
    operator.taken("m", folder / "demo.gguf", "gguf")
    reply = operator.verb("m", "update", {"source": safetensors_model(folder / "st").as_uri()})
    assert reply.status == 400, reply
    assert operator.all()["m"]["format"] == "gguf"
    assert operator.all()["m"]["source"].endswith("demo.gguf")


# --- refusals that name the cause


def without(make: Callable[[Path], Path], *names: str) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        make(folder)
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return folder

    return made


def two_weights(folder: Path) -> Path:
    safetensors_model(folder)
    (folder / "consolidated.safetensors").write_bytes(weights({"a": 1}))
    return folder


def wrong_index(folder: Path) -> Path:
    sharded_model(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = SECOND
    write_json(folder / "model.safetensors.index.json", index)
    return folder


def cut_shard(folder: Path) -> Path:
    sharded_model(folder)
    with (folder / SECOND).open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 8)
    return folder


def leaving_index(folder: Path) -> Path:
    sharded_model(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = "../../../etc/passwd"
    write_json(folder / "model.safetensors.index.json", index)
    return folder


def evil_whisper(folder: Path) -> Path:
    evil_checkpoint(folder / "tiny.pt")
    return folder


def leading_out(folder: Path) -> Path:
    safetensors_model(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/etc/hostname")
    return folder


@pytest.mark.parametrize(
    ("make", "format", "words"),
    [
        (without(safetensors_model, "config.json", "tokenizer.json"), "safetensors", ["config.json", "tokenizer.json"]),
        (without(safetensors_model, "tokenizer.json"), "safetensors", ["tokenizer.json"]),
        (without(safetensors_model, "model.safetensors"), "safetensors", ["safetensors"]),
        (without(sharded_model, SECOND), "safetensors", [SECOND]),
        (two_weights, "safetensors", ["consolidated.safetensors", "model.safetensors"]),
        (wrong_index, "safetensors", ["model.norm.weight"]),
        (cut_shard, "safetensors", [SECOND]),
        (leaving_index, "safetensors", ["passwd"]),
        (leading_out, "safetensors", ["config.json", "ALLM_MODEL_ROOTS"]),
        (without(diffusers_model, "model_index.json"), "diffusers", ["model_index.json"]),
        (without(diffusers_model, "unet"), "diffusers", ["unet"]),
        (without(diffusers_model, "vae/diffusion_pytorch_model.safetensors"), "diffusers", ["vae"]),
        (without(ctranslate2_whisper, "vocabulary.txt"), "whisper", ["vocabulary"]),
        (evil_whisper, "whisper", ["print"]),
        (lambda folder: folder, "gguf", ["no GGUF file"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_file_errors_name_the_file(
    operator: Operator, folder: Path, make: Callable[[Path], Path], format: str, words: list[str]
) -> None:
    message = operator.refused("wrong", make(folder), format)
    for word in words:
        assert word in message, message
    assert "code was run" not in operator.stack.output()


def test_a_truncated_gguf_is_refused_with_its_expected_and_real_size(operator: Operator, folder: Path) -> None:
    path = folder / "cut.gguf"
    whole = demo_model().stat().st_size
    with demo_model().open("rb") as source:
        path.write_bytes(source.read(whole // 10))
    message = operator.refused("cut", path, "gguf")
    assert "cut.gguf" in message
    assert str(whole // 10) in message.replace(",", "")
    assert str(whole) in message.replace(",", "")


def test_a_split_gguf_with_a_missing_part_is_refused_by_its_name(operator: Operator, folder: Path) -> None:
    link_demo(folder, "m-00001-of-00002.gguf")
    assert "m-00002-of-00002.gguf" in operator.refused("split", folder, "gguf")


def test_several_ggufs_need_a_name(operator: Operator, folder: Path) -> None:
    link_demo(folder, "a.gguf")
    link_demo(folder, "b.gguf")
    message = operator.refused("many", folder, "gguf")
    assert "a.gguf" in message
    assert "b.gguf" in message
    operator.taken("one", folder / "b.gguf", "gguf")


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({"source": "file:///x", "format": "gguf"}, "id", "id"),
        ({"id": "m", "format": "gguf"}, "source", "source"),
        ({"id": "m", "source": "file:///x"}, "format", "format"),
        ({"id": "m", "source": "file:///x", "format": "onnx"}, "format", "gguf, safetensors, whisper"),
        ({"id": "m", "source": "file:///x", "format": "GGUF"}, "format", "gguf, safetensors, whisper"),
        ({"id": "m", "source": "s3://b/x", "format": "gguf"}, "source", "hf://"),
        ({"id": "m", "source": "/etc/passwd", "format": "gguf"}, "source", "file:///path"),
        ({"id": "m", "source": "file:///etc/passwd", "format": "gguf"}, "source", "ALLM_MODEL_ROOTS"),
        ({"id": "m", "source": "hf://only-a-name", "format": "gguf"}, "source", "hf://org/name"),
        ({"id": "m", "source": "file:///x", "format": "gguf", "modality": "audio"}, "modality", "audio"),
        ({"id": "../m", "source": "file:///x", "format": "gguf"}, "id", "../m"),
        ({"id": "a b", "source": "file:///x", "format": "gguf"}, "id", "a b"),
        ({"id": "x" * 129, "source": "file:///x", "format": "gguf"}, "id", "128"),
        ({"id": "m:load", "source": "file:///x", "format": "gguf"}, "id", ":load"),
        ({"id": "m", "source": "file:///x", "format": "gguf", "aliases": ["a", "a/../b"]}, "aliases", "a/../b"),
        ({"id": "m", "source": "file:///x", "format": "gguf", "aliases": ["x"] * 33}, "aliases", "32"),
    ],
)
def test_a_wrong_request_is_refused_by_parameter(
    operator: Operator, body: dict[str, object], param: str, word: str
) -> None:
    reply = operator.call("POST", "/v1/models", body)
    assert reply.status == 400, reply
    assert reply.error["param"] == param
    assert word in reply.error["message"]


def test_a_path_out_of_the_roots_is_refused_whether_it_is_there_or_not(operator: Operator) -> None:
    there, absent = (
        operator.refused("m", path, "gguf").replace(str(path), "")
        for path in (Path("/etc/passwd"), Path("/etc/nothing"))
    )
    assert there == absent


# --- unique names


def test_a_taken_name_is_refused_and_nothing_is_overwritten(operator: Operator, folder: Path) -> None:
    path = link_demo(folder)
    operator.taken("first", path, "gguf", aliases=["nick"])
    before = operator.all()["first"]
    other = link_demo(folder, "other.gguf")
    for model_id, aliases in (
        ("first", []),
        ("nick", []),
        ("second", ["first"]),
        ("second", ["nick"]),
        ("second", [MODEL]),
    ):
        reply = operator.register(model_id, other, "gguf", aliases=aliases)
        assert (reply.status, reply.error["code"]) == (409, "model_exists"), reply
        assert ("demo.gguf" in reply.error["message"]) or (MODEL in reply.error["message"]), reply
    assert "second" not in operator.all()
    after = operator.all()["first"]
    reported = {"state": "", "reason": "", "runtime": "", "replicas": []}  # by the service, in between
    assert {**before, **reported} == {**after, **reported}
    reply = operator.verb(MODEL, "update", {"aliases": {"names": [ALIAS, "nick"]}})
    assert reply.status == 409
    assert operator.all()[MODEL]["aliases"] == [ALIAS]


def test_one_name_in_a_request_may_not_stand_twice(operator: Operator, folder: Path) -> None:
    reply = operator.register("m", link_demo(folder), "gguf", aliases=["m"])
    assert reply.status in (400, 409)
    assert "m" not in operator.all()


# --- later changes of local files


def test_a_file_that_is_lost_after_registration_fails_by_name(operator: Operator, folder: Path) -> None:
    sharded_model(folder / "st")
    path = link_demo(folder)
    operator.taken("m", path, "gguf")
    operator.until_state("m", "ready")
    path.unlink()
    path.write_bytes(b"GGUF, but another one")
    reply = operator.verb("m", "update")
    assert reply.status == 400, reply
    assert "demo.gguf" in reply.error["message"]
    assert "Paris" not in operator.chat("m").body.decode()


def test_unknown_models_and_verbs(operator: Operator) -> None:
    for verb in ("update", "load", "unload"):
        reply = operator.verb("nothing", verb)
        assert (reply.status, reply.error["code"]) == (404, "model_not_found"), reply
    assert operator.verb(MODEL, "explode").status == 404
    assert operator.call("GET", "/v1/models?state=some").status == 400
    reply = operator.delete(ALIAS)
    assert reply.status == 400, "an alias deletes nothing"
    assert MODEL in reply.error["message"]
    assert MODEL in operator.all()


def test_loading_and_unloading_by_hand(operator: Operator, folder: Path) -> None:
    operator.taken("org/m:1", link_demo(folder), "gguf")
    operator.until_state("org/m:1", "ready")
    assert operator.verb("org/m:1", "load").model["keep_loaded"] is True
    operator.until_state("org/m:1", "loaded")
    reply = operator.verb("org/m:1", "load", {"runtime": "tgi"})
    assert reply.status == 400
    assert "llama_cpp" in reply.error["message"]
    operator.verb("org/m:1", "unload")
    operator.until_state("org/m:1", "ready")
