"""Runtime and engine settings in `allm models add`, `update` and `show`."""

from __future__ import annotations

from pathlib import Path

from allm.models.v1 import model_pb2

from tests.cli.models.catalog_stand_in import Commands, desired

ADD = ("add", "m", "hf://org/m", "--format", "safetensors", "--no-wait")
WHOLE = model_pb2.EngineSettings(
    tensor_parallel=2,
    pipeline_parallel=3,
    context_tokens=4096,
    max_sequences=8,
    kv_tokens=2**33,
    dtype="bfloat16",
    speculation="ngram",
)
OPTIONS = [
    word
    for field, value in WHOLE.ListFields()
    for word in (f"--{field.name.replace('_', '-')}", str(value))
]  # fmt: skip


def test_runtime_and_settings_reach_the_catalog(models: Commands) -> None:
    assert len(OPTIONS) == 2 * len(model_pb2.EngineSettings.DESCRIPTOR.fields), "none is left out"
    assert models(*ADD, "--runtime", "vllm", *OPTIONS).status == 0
    (request,) = models.catalog.requests("RegisterModel")
    assert (request.runtime, request.engine) == ("vllm", WHOLE)


def test_unset_values_are_not_sent(models: Commands) -> None:
    models.catalog.models["other"] = desired("other")
    assert models(*ADD).status == 0
    assert models("update", "other", "--no-wait").status == 0
    (new,), (change,) = models.catalog.requests("RegisterModel"), models.catalog.requests("UpdateModel")
    assert (new.runtime, new.HasField("engine")) == ("", False)
    assert (change.HasField("runtime"), change.HasField("engine")) == (False, False)


def test_an_update_can_reset_both(models: Commands) -> None:
    models.catalog.models["m"] = desired("m")
    assert models("update", "m", "--runtime", "vllm", "--max-sequences", "4", "--no-wait").status == 0
    assert models("update", "m", "--runtime", "", "--max-sequences", "0", "--no-wait").status == 0
    given, back = models.catalog.requests("UpdateModel")
    assert (given.runtime, given.engine) == ("vllm", model_pb2.EngineSettings(max_sequences=4))
    assert (back.HasField("runtime"), back.runtime) == (True, "")
    assert (back.HasField("engine"), back.engine) == (True, model_pb2.EngineSettings())


def test_both_are_shown(models: Commands) -> None:
    shown = desired("m")
    models.catalog.models["m"] = shown
    assert "requested runtime" not in models("show", "m").stdout
    shown.model.asked_runtime = "vllm"
    shown.model.engine.CopyFrom(model_pb2.EngineSettings(tensor_parallel=2, dtype="float16"))
    text = models("show", "m").stdout
    assert "requested runtime" in text
    assert "tensor_parallel=2, dtype=float16" in text


HUB = "hf://org/m#m.safetensors"
ADD_IMAGE = ("add", "m", HUB, "--format", "diffusers", "--no-wait")


def test_parts_and_values_reach_the_catalog(models: Commands, tmp_path: Path) -> None:
    folder, file, odd = tmp_path / "base", tmp_path / "a.safetensors", tmp_path / "b=c"
    folder.mkdir()
    file.touch()
    odd.touch()
    values = ("--base", str(folder), "--steps", "20", "--guidance", "0")
    loras = ("--lora", f"{file}=0.8", "--lora", "hf://org/l#x.safetensors=-1", "--lora", str(file), "--lora", str(odd))
    assert models(*ADD_IMAGE, *values, *loras).status == 0
    (request,) = models.catalog.requests("RegisterModel")
    assert request.base == folder.as_uri()
    assert request.image_defaults == model_pb2.ImageDefaults(steps=20, guidance=0)
    assert list(request.loras) == [
        model_pb2.Lora(source=file.as_uri(), scale=0.8),
        model_pb2.Lora(source="hf://org/l#x.safetensors", scale=-1),
        model_pb2.Lora(source=file.as_uri()),
        model_pb2.Lora(source=odd.as_uri()),
    ]


def test_without_options_nothing_is_sent(models: Commands) -> None:
    assert models(*ADD_IMAGE).status == 0
    (request,) = models.catalog.requests("RegisterModel")
    assert (request.base, len(request.loras), request.HasField("image_defaults")) == ("", 0, False)


def test_an_update_distinguishes_none_from_unchanged(models: Commands) -> None:
    models.catalog.models["m"] = desired("m")
    assert models("update", "m", "--no-wait").status == 0
    assert models("update", "m", "--no-loras", "--no-wait").status == 0
    assert models("update", "m", "--lora", "hf://org/l", "--steps", "4", "--no-wait").status == 0
    plain, none, other = models.catalog.requests("UpdateModel")
    assert (plain.HasField("loras"), plain.HasField("image_defaults")) == (False, False)
    assert (none.HasField("loras"), len(none.loras.loras)) == (True, 0)
    assert (other.loras.loras[0].source, other.image_defaults) == ("hf://org/l", model_pb2.ImageDefaults(steps=4))
    both = models("update", "m", "--no-loras", "--lora", "hf://org/l")
    assert "--lora and --no-loras are mutually exclusive" in both.stderr


def test_a_lora_that_is_nowhere_is_refused(models: Commands) -> None:
    done = models(*ADD_IMAGE, "--lora", "nowhere.safetensors=0.5")
    assert (done.status, "nowhere.safetensors is not a file or folder on this machine" in done.stderr) == (1, True)
    assert not models.catalog.calls


def test_all_of_it_is_shown(models: Commands) -> None:
    shown = desired("m")
    shown.model.base = "hf://org/base"
    shown.model.loras.add(source="hf://org/l", scale=0.5)
    shown.model.image_defaults.steps = 20
    models.catalog.models["m"] = shown
    text = models("show", "m").stdout
    assert "hf://org/l (scale 0.5)" in text
    assert "20 steps" in text
