"""Image options in `allm models add`, `update` and `show`."""

from __future__ import annotations

from pathlib import Path

from allm.models.v1 import model_pb2

from tests.cli.models.catalog_stand_in import Commands, desired

HUB = "hf://org/m#m.safetensors"
ADD = ("add", "m", HUB, "--format", "diffusers", "--no-wait")


def test_parts_and_values_reach_the_catalog(models: Commands, tmp_path: Path) -> None:
    folder, file, odd = tmp_path / "base", tmp_path / "a.safetensors", tmp_path / "b=c"
    folder.mkdir()
    file.touch()
    odd.touch()
    values = ("--base", str(folder), "--steps", "20", "--guidance", "0")
    loras = ("--lora", f"{file}=0.8", "--lora", "hf://org/l#x.safetensors=-1", "--lora", str(file), "--lora", str(odd))
    assert models(*ADD, *values, *loras).status == 0
    (request,) = models.catalog.requests("RegisterModel")
    assert request.base == folder.as_uri()
    assert request.image_defaults == model_pb2.ImageDefaults(steps=20, guidance=0)
    assert list(request.loras) == [
        model_pb2.Lora(source=file.as_uri(), scale=0.8),
        model_pb2.Lora(source="hf://org/l#x.safetensors", scale=-1),
        model_pb2.Lora(source=file.as_uri()),
        model_pb2.Lora(source=odd.as_uri()),
    ]


def test_without_them_nothing_is_said(models: Commands) -> None:
    assert models(*ADD).status == 0
    (request,) = models.catalog.requests("RegisterModel")
    assert (request.base, len(request.loras), request.HasField("image_defaults")) == ("", 0, False)


def test_an_update_tells_none_from_as_they_are(models: Commands) -> None:
    models.catalog.models["m"] = desired("m")
    assert models("update", "m", "--no-wait").status == 0
    assert models("update", "m", "--no-loras", "--no-wait").status == 0
    assert models("update", "m", "--lora", "hf://org/l", "--steps", "4", "--no-wait").status == 0
    plain, none, other = models.catalog.requests("UpdateModel")
    assert (plain.HasField("loras"), plain.HasField("image_defaults")) == (False, False)
    assert (none.HasField("loras"), len(none.loras.loras)) == (True, 0)
    assert (other.loras.loras[0].source, other.image_defaults) == ("hf://org/l", model_pb2.ImageDefaults(steps=4))
    both = models("update", "m", "--no-loras", "--lora", "hf://org/l")
    assert "--lora and --no-loras exclude each other" in both.stderr


def test_a_lora_that_is_nowhere_is_refused(models: Commands) -> None:
    done = models(*ADD, "--lora", "nowhere.safetensors=0.5")
    assert (done.status, "nowhere.safetensors is no file or folder here" in done.stderr) == (1, True)
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
