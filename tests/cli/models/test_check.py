"""`allm models check`: real files compared with manifests."""

from __future__ import annotations

import hashlib
from pathlib import Path

from allm.models.v1 import manifest_pb2

from services.models.wire import read_manifest
from services.provision.model_cache import ModelCache
from tests.cli.models.catalog_stand_in import Commands, desired, replica

CONTENT = b"weights " * 1000


def fetched(models: Commands, model_id: str, content: bytes = CONTENT) -> Path:
    """Registers a hub model and writes its only file to ALLM_MODELS_DIR; returns the file."""
    registered = desired(model_id)
    registered.manifest.files[0].size_bytes = len(CONTENT)
    registered.manifest.files[0].sha256 = hashlib.sha256(CONTENT).hexdigest()
    models.catalog.models[model_id] = registered
    folder = ModelCache(models.home / "models").model_folder(model_id, read_manifest(registered.manifest))
    folder.mkdir(parents=True)
    (folder / "m.gguf").write_bytes(content)
    return folder / "m.gguf"


def test_whole_files_are_ok(models: Commands) -> None:
    fetched(models, "a")
    fetched(models, "b/c")
    for options in ((), ("--deep",), ("--quick",)):
        done = models("check", *options)
        assert (done.status, done.stderr) == (0, "")
        first, second = done.stdout.splitlines()
        assert first.startswith("a: ok, 1 file, 7.8 KiB in ")
        assert second.startswith("b/c: ok")
    assert "compared by SHA-256" in models("check").stdout
    assert "compared by size" in models("check", "--quick").stdout


def test_a_file_that_is_too_short_or_gone_is_named(models: Commands) -> None:
    fetched(models, "good")
    file = fetched(models, "bad", CONTENT[:-1])
    done = models("check")
    assert done.status == 1
    assert f"bad: {file} has 7999 bytes, expected 8000\n" in done.stdout
    assert "good: ok" in done.stdout
    file.unlink()
    done = models("check", "bad")
    assert (done.status, done.stdout) == (1, f"bad: {file} is missing\n")


def test_only_a_deep_look_finds_other_content(models: Commands) -> None:
    file = fetched(models, "m", CONTENT.replace(b"w", b"v"))
    assert models("check", "m", "--quick").status == 0
    done = models("check", "m", "--deep", "--json")
    assert done.status == 1
    (found,) = done.json["models"]
    assert (found["id"], found["whole"], found["files"], found["hashed"]) == ("m", False, 1, 1)
    assert str(file) in found["problems"][0]
    assert "SHA-256" in found["problems"][0]


def test_files_of_a_local_source_are_looked_at_where_they_are(models: Commands, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(CONTENT)
    registered = desired("m", source=tmp_path.as_uri())
    registered.manifest.CopyFrom(
        manifest_pb2.Manifest(
            folder=str(tmp_path), files=[manifest_pb2.ManifestFile(path="m.gguf", size_bytes=len(CONTENT))]
        )
    )
    models.catalog.models["m"] = registered
    done = models("check", "m", "--deep")
    assert done.status == 0
    assert f"1 file, 7.8 KiB in {tmp_path} (compared by size)" in done.stdout


def test_a_manifest_that_leads_out_of_its_folder_is_not_followed(models: Commands) -> None:
    fetched(models, "m")
    models.catalog.models["m"].manifest.files[0].path = "../m.gguf"
    done = models("check", "m")
    assert done.status == 1
    assert "leaves the model's folder" in done.stdout


def test_nothing_registered_is_nothing_wrong(models: Commands) -> None:
    assert models("check").status == 0
    assert models("check", "--json").json == {"models": []}


def test_unfetched_model_is_not_a_problem(models: Commands) -> None:
    fetched(models, "there")
    models.catalog.models["coming"] = desired("coming", "downloading", replicas=[replica("downloading")])
    models.catalog.models["never"] = desired("never", "unsupported", replicas=[replica("unsupported")])
    models.catalog.models["changing"] = desired("changing", "loaded", generation=2, replicas=[replica("loaded")])
    done = models("check")
    assert done.status == 0, done
    lines = done.stdout.splitlines()
    assert "coming: downloading, no files of the model are fetched here yet" in lines
    assert "never: unsupported, no files of the model are fetched here" in lines
    assert "changing: loaded, no files of generation 2 are fetched here yet" in lines
    reports = {report["id"]: report for report in models("check", "--json").json["models"]}
    assert {model_id: (each["fetched"], each["whole"]) for model_id, each in reports.items()} == {
        "changing": (False, False),
        "coming": (False, False),
        "never": (False, False),
        "there": (True, True),
    }


def test_a_model_that_serves_without_its_files_is_wrong(models: Commands) -> None:
    models.catalog.models["m"] = desired("m", replicas=[replica("ready")])
    done = models("check", "m")
    assert done.status == 1
    assert done.stdout.endswith("m.gguf is missing\n")


def test_an_execution_cache_is_looked_at_in_place_of_the_weights(models: Commands) -> None:
    registered = desired("m", replicas=[replica("ready", artifact="nvidia/m-gguf@c0ffee")])
    file = manifest_pb2.ManifestFile(path="c.gguf", size_bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
    cache = manifest_pb2.Manifest(repository="nvidia/m-gguf", revision="c0ffee", files=[file], primary="c.gguf")
    unused = manifest_pb2.Manifest(repository="openai/m-gguf", revision="c0ffee", files=[file], primary="c.gguf")
    for manifest in (cache, unused):
        registered.artifacts.add(runtime="llama_cpp", devices=["cpu"], manifest=manifest)
    models.catalog.models["m"] = registered
    folder = ModelCache(models.home / "models").model_folder("m", read_manifest(cache))
    folder.mkdir(parents=True)
    (folder / "c.gguf").write_bytes(CONTENT)
    done = models("check", "m")
    assert (done.status, done.stdout) == (
        0,
        f"m (nvidia/m-gguf): ok, 1 file, 7.8 KiB in {folder} (1 compared by SHA-256)\n",
    )
    (folder / "c.gguf").unlink()
    done = models("check", "m", "--json")
    assert done.status == 1
    (report,) = done.json["models"]
    assert (report["id"], report["artifact"]) == ("m", "nvidia/m-gguf")
    folder.rmdir()
    assert models("check", "m").status == 1
