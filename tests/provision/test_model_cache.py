"""The model cache: files stay below its folder whatever their names, and files in use are never removed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.errors import Cancelled, ModelInvalid
from services.models.manifest import Manifest, ManifestFile
from services.provision.model_cache import ModelCache, safe_name
from tests.case import case

CONTENT = {"config.json": b"{}", "deep/weights.gguf": b"weights" * 1000}
HASHES = {path: hashlib.sha256(data).hexdigest() for path, data in CONTENT.items()}
MANIFEST = Manifest(
    files=tuple(ManifestFile(path=path, size=len(data), sha256=HASHES[path]) for path, data in CONTENT.items()),
    repository="org/model",
    revision="a" * 40,
)
NEWER = Manifest(files=MANIFEST.files, repository="org/model", revision="b" * 40)


@pytest.fixture
def model_cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "models")


def put(folder: Path) -> Path:
    for path, data in CONTENT.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def checked(model_cache: ModelCache, manifest: Manifest, folder: Path) -> list[str]:
    return model_cache.verify(manifest, folder, lambda _: None, threading.Event())


# --- folders

HOSTILE = [
    "..", ".", "", "/", "../..", "/etc/passwd", "a/../../b", "a/b", "a%2Fb", "a%2fb", ".partial", ".locks", "%", "%25",
    "a\\b", "a\0b", "a\nb", "a:b", "a@b", "a+b", "a b", "ä", "\ud800", "~", "~root", "-rf", "a" * 200, "a" * 201,
    "/" * 100, "/" * 101, "\U0001f600" * 100, "a.", "con", "A/B", "*", "org/model:Q4_K_M@main+lora",
]  # fmt: skip


def test_every_id_has_its_own_folder_in_the_cache(model_cache: ModelCache) -> None:
    for model_id in HOSTILE:
        with case(model_id=model_id):
            for place in (model_cache.model_folder(model_id, MANIFEST), model_cache.staging(model_id, MANIFEST)):
                assert Path(os.path.normpath(place)).is_relative_to(model_cache.folder)
                assert len(place.relative_to(model_cache.folder).parts) == 2, "all of an id is one name"
                assert max(len(os.fsencode(part)) for part in place.parts) <= 200
                place.mkdir(parents=True)
                assert place.resolve().is_relative_to(model_cache.folder.resolve())
            model_cache.hold(model_id, MANIFEST).close()
            assert not model_cache.model_folder(model_id, MANIFEST).parent.name.startswith(".")
            assert {path.name for path in model_cache.folder.parent.iterdir()} == {"models"}


def test_no_two_ids_share_a_name() -> None:
    names = {safe_name(model_id) for model_id in HOSTILE}
    assert len(names) == len(set(HOSTILE))


def test_names_can_be_read() -> None:
    assert safe_name("Qwen3-0.6B_v1") == "Qwen3-0.6B_v1"
    assert safe_name("org/model@main") == "org%2Fmodel@main"


def test_generations_lie_side_by_side(model_cache: ModelCache) -> None:
    assert model_cache.model_folder("m", MANIFEST) == model_cache.folder / "m" / MANIFEST.digest[:16]
    assert model_cache.model_folder("m", MANIFEST) != model_cache.model_folder("m", NEWER)
    assert model_cache.model_folder("m", MANIFEST).parent == model_cache.model_folder("m", NEWER).parent


def test_local_models_stay_where_they_are(model_cache: ModelCache, tmp_path: Path) -> None:
    local = Manifest(files=MANIFEST.files, folder=str(put(tmp_path / "mine")))
    assert model_cache.model_folder("m", local) == tmp_path / "mine"
    with model_cache.hold("m", local):
        assert model_cache.discard("m", local) is False
    assert model_cache.discard("m", local) is False
    assert model_cache.find_problems(local, tmp_path / "mine") == []
    assert not model_cache.folder.exists(), "and leave no trace"


# --- checks


def test_a_whole_folder_has_no_problems(model_cache: ModelCache, tmp_path: Path) -> None:
    folder = put(tmp_path / "it")
    seen: list[int] = []
    assert model_cache.find_problems(MANIFEST, folder) == []
    assert model_cache.verify(MANIFEST, folder, seen.append, threading.Event()) == []
    assert seen[-1] == MANIFEST.size
    assert seen == sorted(seen)


def test_missing_or_resized_files_are_named_with_both_sizes(model_cache: ModelCache, tmp_path: Path) -> None:
    folder = put(tmp_path / "it")
    (folder / "config.json").unlink()
    (folder / "deep/weights.gguf").write_bytes(b"short")
    expected = [
        f"{folder}/config.json is missing",
        f"{folder}/deep/weights.gguf has 5 bytes, expected 7000",
    ]
    assert model_cache.find_problems(MANIFEST, folder) == expected
    assert checked(model_cache, MANIFEST, folder) == expected
    assert len(model_cache.find_problems(MANIFEST, tmp_path / "nowhere")) == 2


def test_a_file_that_is_a_folder_or_lies_below_a_file_is_named(model_cache: ModelCache, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    (folder / "config.json").mkdir(parents=True)
    (folder / "deep").touch()
    assert model_cache.find_problems(MANIFEST, folder) == [
        f"{folder}/config.json is not a file",
        f"{folder}/deep/weights.gguf is missing",
    ]


def test_another_content_of_the_same_size_is_found_by_its_hash(model_cache: ModelCache, tmp_path: Path) -> None:
    folder = put(tmp_path / "it")
    (folder / "config.json").write_bytes(b"[]")
    assert model_cache.find_problems(MANIFEST, folder) == [], "which is quick and reads nothing"
    real = hashlib.sha256(b"[]").hexdigest()
    assert checked(model_cache, MANIFEST, folder) == [
        f"{folder}/config.json has SHA-256 {real}, expected {HASHES['config.json']}"
    ]


def test_a_link_is_a_file_only_in_a_local_model(model_cache: ModelCache, tmp_path: Path) -> None:
    folder = put(tmp_path / "it")
    (folder / "config.json").rename(tmp_path / "config.json")
    (folder / "config.json").symlink_to(tmp_path / "config.json")
    assert model_cache.find_problems(MANIFEST, folder) == [f"{folder}/config.json is not a file"]
    assert checked(model_cache, MANIFEST, folder) == [f"{folder}/config.json is not a file"]
    local = Manifest(files=MANIFEST.files, folder=str(folder))
    assert model_cache.find_problems(local, folder) == checked(model_cache, local, folder) == []


def test_nothing_outside_of_the_folder_is_looked_at(model_cache: ModelCache, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"12")
    lying = Manifest(files=(ManifestFile(path="../secret", size=1),), repository="org/model", revision="a" * 40)
    with pytest.raises(ModelInvalid, match="leaves the model's folder"):
        model_cache.find_problems(lying, tmp_path / "it")
    with pytest.raises(ModelInvalid, match="leaves the model's folder"):
        checked(model_cache, lying, tmp_path / "it")


def test_verifying_can_be_stopped(model_cache: ModelCache, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        model_cache.verify(MANIFEST, put(tmp_path / "it"), lambda _: None, stop)


# --- holds

HOLDER = """
import sys
from pathlib import Path
from services.models.manifest import Manifest, ManifestFile
from services.provision.model_cache import ModelCache
files = tuple(ManifestFile(path=path, size=int(size), sha256=sha256) for path, size, sha256 in {files!r})
hold = ModelCache(Path(sys.argv[1])).hold("m", Manifest(files=files, repository="org/model", revision="a" * 40))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(model_cache: ModelCache) -> Iterator[subprocess.Popen[str]]:
    """Yields another replica that serves MANIFEST until killed."""
    program = HOLDER.format(files=[(file.path, file.size, file.sha256) for file in MANIFEST.files])
    command = [sys.executable, "-c", program, str(model_cache.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "held\n"
        yield child
        child.kill()


def test_unheld_model_is_removed_with_its_partial_download(model_cache: ModelCache) -> None:
    place, staging = put(model_cache.model_folder("m", MANIFEST)), put(model_cache.staging("m", MANIFEST))
    other = put(model_cache.model_folder("m", NEWER))
    assert model_cache.discard("m", MANIFEST) is True
    assert not place.exists()
    assert not staging.exists()
    assert model_cache.find_problems(NEWER, other) == [], "another generation stays"
    assert list((model_cache.folder / ".discarded").iterdir()) == []
    assert model_cache.discard("m", NEWER) is True
    assert not other.parent.exists()
    assert model_cache.discard("m", NEWER) is True, "nothing of it is there"


def test_files_held_by_another_process_stay_until_it_is_killed(
    model_cache: ModelCache, holder: subprocess.Popen[str]
) -> None:
    place = put(model_cache.model_folder("m", MANIFEST))
    assert model_cache.discard("m", MANIFEST) is False
    assert model_cache.find_problems(MANIFEST, place) == []
    holder.kill()
    holder.wait()
    assert model_cache.discard("m", MANIFEST) is True
    assert not place.exists()


def test_held_files_stay_until_the_last_hold_is_released(model_cache: ModelCache) -> None:
    place = put(model_cache.model_folder("m", MANIFEST))
    first = model_cache.hold("m", MANIFEST)
    with model_cache.hold("m", MANIFEST):
        first.close()
        first.close()
        assert model_cache.discard("m", MANIFEST) is False
    assert model_cache.find_problems(MANIFEST, place) == []
    assert model_cache.discard("m", MANIFEST) is True


def test_running_download_stays(model_cache: ModelCache) -> None:
    staging = put(model_cache.staging("m", MANIFEST))
    lock = model_cache.fetch_lock("m", MANIFEST)
    assert lock.take()
    assert model_cache.discard("m", MANIFEST) is False
    assert staging.exists()
    lock.release()
    assert model_cache.discard("m", MANIFEST) is True


def test_deletion_of_a_killed_process_is_completed_by_the_next(model_cache: ModelCache) -> None:
    left = put(model_cache.folder / ".discarded" / "half")
    assert model_cache.discard("m", MANIFEST) is True
    assert not left.exists()


def test_the_names_of_ids_do_not_mix_up_their_holds(model_cache: ModelCache) -> None:
    put(model_cache.model_folder("a/b", MANIFEST))
    with model_cache.hold("a", MANIFEST), model_cache.hold("a%2Fb", MANIFEST):
        assert model_cache.discard("a/b", MANIFEST) is True


def test_several_sets_of_files_are_held_and_released_together(model_cache: ModelCache) -> None:
    with model_cache.hold("m", MANIFEST, NEWER):
        assert not model_cache.discard("m", MANIFEST)
        assert not model_cache.discard("m", NEWER)
    assert model_cache.discard("m", MANIFEST)
    assert model_cache.discard("m", NEWER)
