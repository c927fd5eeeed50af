"""Files stay below their folder whatever they are called, and nobody loses those that are in use."""

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
from services.provision.model_cache import Shelf, safe_name
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
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "models")


def put(folder: Path) -> Path:
    for path, data in CONTENT.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def checked(shelf: Shelf, manifest: Manifest, folder: Path) -> list[str]:
    return shelf.verify(manifest, folder, lambda _: None, threading.Event())


# --- places

HOSTILE = [
    "..", ".", "", "/", "../..", "/etc/passwd", "a/../../b", "a/b", "a%2Fb", "a%2fb", ".partial", ".locks", "%", "%25",
    "a\\b", "a\0b", "a\nb", "a:b", "a@b", "a+b", "a b", "ä", "\ud800", "~", "~root", "-rf", "a" * 200, "a" * 201,
    "/" * 100, "/" * 101, "\U0001f600" * 100, "a.", "con", "A/B", "*", "org/model:Q4_K_M@main+lora",
]  # fmt: skip


def test_every_id_has_a_place_of_its_own_on_the_shelf(shelf: Shelf) -> None:
    for model_id in HOSTILE:
        with case(model_id=model_id):
            for place in (shelf.place(model_id, MANIFEST), shelf.staging(model_id, MANIFEST)):
                assert Path(os.path.normpath(place)).is_relative_to(shelf.folder)
                assert len(place.relative_to(shelf.folder).parts) == 2, "all of an id is one name"
                assert max(len(os.fsencode(part)) for part in place.parts) <= 200
                place.mkdir(parents=True)
                assert place.resolve().is_relative_to(shelf.folder.resolve())
            shelf.hold(model_id, MANIFEST).release()
            assert not shelf.place(model_id, MANIFEST).parent.name.startswith(".")
            assert {path.name for path in shelf.folder.parent.iterdir()} == {"models"}


def test_no_two_ids_share_a_name() -> None:
    names = {safe_name(model_id) for model_id in HOSTILE}
    assert len(names) == len(set(HOSTILE))


def test_names_can_be_read() -> None:
    assert safe_name("Qwen3-0.6B_v1") == "Qwen3-0.6B_v1"
    assert safe_name("org/model@main") == "org%2Fmodel@main"


def test_generations_lie_side_by_side(shelf: Shelf) -> None:
    assert shelf.place("m", MANIFEST) == shelf.folder / "m" / MANIFEST.digest[:16]
    assert shelf.place("m", MANIFEST) != shelf.place("m", NEWER)
    assert shelf.place("m", MANIFEST).parent == shelf.place("m", NEWER).parent


def test_local_models_stay_where_they_are(shelf: Shelf, tmp_path: Path) -> None:
    local = Manifest(files=MANIFEST.files, folder=str(put(tmp_path / "mine")))
    assert shelf.place("m", local) == tmp_path / "mine"
    with shelf.hold("m", local):
        assert shelf.discard("m", local) is False
    assert shelf.discard("m", local) is False
    assert shelf.whole(local, tmp_path / "mine") == []
    assert not shelf.folder.exists(), "and leave no trace"


# --- checks


def test_a_whole_folder_has_no_problems(shelf: Shelf, tmp_path: Path) -> None:
    folder = put(tmp_path / "it")
    seen: list[int] = []
    assert shelf.whole(MANIFEST, folder) == []
    assert shelf.verify(MANIFEST, folder, seen.append, threading.Event()) == []
    assert seen[-1] == MANIFEST.size
    assert seen == sorted(seen)


def test_what_is_missing_or_has_another_size_is_named_with_both(shelf: Shelf, tmp_path: Path) -> None:
    folder = put(tmp_path / "it")
    (folder / "config.json").unlink()
    (folder / "deep/weights.gguf").write_bytes(b"short")
    expected = [
        f"{folder}/config.json is missing",
        f"{folder}/deep/weights.gguf has 5 bytes, expected are 7000",
    ]
    assert shelf.whole(MANIFEST, folder) == expected
    assert checked(shelf, MANIFEST, folder) == expected
    assert len(shelf.whole(MANIFEST, tmp_path / "nowhere")) == 2


def test_a_file_that_is_a_folder_or_lies_below_a_file_is_named(shelf: Shelf, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    (folder / "config.json").mkdir(parents=True)
    (folder / "deep").touch()
    assert shelf.whole(MANIFEST, folder) == [
        f"{folder}/config.json is no file",
        f"{folder}/deep/weights.gguf is missing",
    ]


def test_another_content_of_the_same_size_is_found_by_its_hash(shelf: Shelf, tmp_path: Path) -> None:
    folder = put(tmp_path / "it")
    (folder / "config.json").write_bytes(b"[]")
    assert shelf.whole(MANIFEST, folder) == [], "which is quick and reads nothing"
    real = hashlib.sha256(b"[]").hexdigest()
    assert checked(shelf, MANIFEST, folder) == [
        f"{folder}/config.json has SHA-256 {real}, expected is {HASHES['config.json']}"
    ]


def test_a_link_is_a_file_only_in_a_local_model(shelf: Shelf, tmp_path: Path) -> None:
    folder = put(tmp_path / "it")
    (folder / "config.json").rename(tmp_path / "config.json")
    (folder / "config.json").symlink_to(tmp_path / "config.json")
    assert shelf.whole(MANIFEST, folder) == [f"{folder}/config.json is no file"]
    assert checked(shelf, MANIFEST, folder) == [f"{folder}/config.json is no file"]
    local = Manifest(files=MANIFEST.files, folder=str(folder))
    assert shelf.whole(local, folder) == checked(shelf, local, folder) == []


def test_nothing_outside_of_the_folder_is_looked_at(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"12")
    lying = Manifest(files=(ManifestFile(path="../secret", size=1),), repository="org/model", revision="a" * 40)
    with pytest.raises(ModelInvalid, match="leaves the model's folder"):
        shelf.whole(lying, tmp_path / "it")
    with pytest.raises(ModelInvalid, match="leaves the model's folder"):
        checked(shelf, lying, tmp_path / "it")


def test_verifying_can_be_stopped(shelf: Shelf, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        shelf.verify(MANIFEST, put(tmp_path / "it"), lambda _: None, stop)


# --- holds

HOLDER = """
import sys
from pathlib import Path
from services.models.manifest import Manifest, ManifestFile
from services.provision.model_cache import Shelf
files = tuple(ManifestFile(path=path, size=int(size), sha256=sha256) for path, size, sha256 in {files!r})
hold = Shelf(Path(sys.argv[1])).hold("m", Manifest(files=files, repository="org/model", revision="a" * 40))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(shelf: Shelf) -> Iterator[subprocess.Popen[str]]:
    """Another replica that serves MANIFEST until killed."""
    program = HOLDER.format(files=[(file.path, file.size, file.sha256) for file in MANIFEST.files])
    command = [sys.executable, "-c", program, str(shelf.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "held\n"
        yield child
        child.kill()


def test_what_nobody_holds_is_removed_with_what_was_fetched_of_it(shelf: Shelf) -> None:
    place, staging = put(shelf.place("m", MANIFEST)), put(shelf.staging("m", MANIFEST))
    other = put(shelf.place("m", NEWER))
    assert shelf.discard("m", MANIFEST) is True
    assert not place.exists()
    assert not staging.exists()
    assert shelf.whole(NEWER, other) == [], "another generation stays"
    assert list((shelf.folder / ".discarded").iterdir()) == []
    assert shelf.discard("m", NEWER) is True
    assert not other.parent.exists()
    assert shelf.discard("m", NEWER) is True, "nothing of it is there"


def test_what_another_process_holds_stays_until_it_is_killed(shelf: Shelf, holder: subprocess.Popen[str]) -> None:
    place = put(shelf.place("m", MANIFEST))
    assert shelf.discard("m", MANIFEST) is False
    assert shelf.whole(MANIFEST, place) == []
    holder.kill()
    holder.wait()
    assert shelf.discard("m", MANIFEST) is True
    assert not place.exists()


def test_what_this_process_holds_stays_until_the_last_hold_is_released(shelf: Shelf) -> None:
    place = put(shelf.place("m", MANIFEST))
    first = shelf.hold("m", MANIFEST)
    with shelf.hold("m", MANIFEST):
        first.release()
        first.release()
        assert shelf.discard("m", MANIFEST) is False
    assert shelf.whole(MANIFEST, place) == []
    assert shelf.discard("m", MANIFEST) is True


def test_what_is_being_fetched_stays(shelf: Shelf) -> None:
    staging = put(shelf.staging("m", MANIFEST))
    lock = shelf.fetch_lock("m", MANIFEST)
    assert lock.take()
    assert shelf.discard("m", MANIFEST) is False
    assert staging.exists()
    lock.release()
    assert shelf.discard("m", MANIFEST) is True


def test_what_a_killed_process_was_deleting_goes_with_the_next(shelf: Shelf) -> None:
    left = put(shelf.folder / ".discarded" / "half")
    assert shelf.discard("m", MANIFEST) is True
    assert not left.exists()


def test_the_names_of_ids_do_not_mix_up_their_holds(shelf: Shelf) -> None:
    put(shelf.place("a/b", MANIFEST))
    with shelf.hold("a", MANIFEST), shelf.hold("a%2Fb", MANIFEST):
        assert shelf.discard("a/b", MANIFEST) is True


def test_several_sets_of_files_are_held_and_released_together(shelf: Shelf) -> None:
    with shelf.hold("m", MANIFEST, NEWER):
        assert not shelf.discard("m", MANIFEST)
        assert not shelf.discard("m", NEWER)
    assert shelf.discard("m", MANIFEST)
    assert shelf.discard("m", NEWER)
