"""Folders as trees: listed files, opened files, and followed links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.errors import ModelInvalid
from services.models.hub.source_tree import FileTree, LocalTree


def write(path: Path, content: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_a_folder_is_listed_with_what_is_below_it(tmp_path: Path) -> None:
    write(tmp_path / "b.json", "12345")
    write(tmp_path / "a.gguf", "")
    write(tmp_path / "unet/deep/x.bin", "1")
    (tmp_path / "empty").mkdir()
    tree: FileTree = LocalTree(tmp_path, [tmp_path])
    assert list(tree.files) == ["a.gguf", "b.json", "unet/deep/x.bin"]
    assert [(file.path, file.size, file.sha256) for file in tree.files.values()] == [
        ("a.gguf", 0, ""),
        ("b.json", 5, ""),
        ("unet/deep/x.bin", 1, ""),
    ]
    assert (tree.folder, tree.repository, tree.revision) == (str(tmp_path), "", "")


def test_a_file_is_opened_and_can_be_sought_in(tmp_path: Path) -> None:
    write(tmp_path / "sub/a", "0123456789")
    with LocalTree(tmp_path, [tmp_path]).open("sub/a") as file:
        assert file.seek(4) == 4
        assert file.read(2) == b"45"


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / ".cache/x")
    write(tmp_path / ".gitattributes")
    write(tmp_path / "sub/.hidden")
    write(tmp_path / "sub/seen")
    assert list(LocalTree(tmp_path, [tmp_path]).files) == ["sub/seen"]


def test_only_so_many_levels_are_listed(tmp_path: Path) -> None:
    write(tmp_path / "0")
    write(tmp_path / "a/1")
    write(tmp_path / "a/b/2")
    assert list(LocalTree(tmp_path, [tmp_path], depth=1).files) == ["0", "a/1"]
    assert list(LocalTree(tmp_path, [tmp_path], depth=0).files) == ["0"]


def test_links_within_the_roots_are_followed(tmp_path: Path) -> None:
    folder, store = tmp_path / "m", tmp_path / "store"
    write(store / "blob", "12345")
    write(store / "more/x")
    folder.mkdir()
    (folder / "model.gguf").symlink_to(store / "blob")
    (folder / "sub").symlink_to(store / "more")
    tree = LocalTree(folder, [tmp_path])
    assert {path: file.size for path, file in tree.files.items()} == {"model.gguf": 5, "sub/x": 1}
    with tree.open("model.gguf") as file:
        assert file.read() == b"12345"


@pytest.mark.parametrize("name", ["file", "folder"])
def test_links_out_of_the_roots_are_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "m"
    write(tmp_path / "folder/x")
    write(tmp_path / "file")
    write(folder / "sub/fine")
    (folder / "sub/out").symlink_to(tmp_path / name)
    with pytest.raises(ModelInvalid, match=f"{folder}/sub/out is a link that leads out of ALLM_MODEL_ROOTS"):
        LocalTree(folder, [folder])
    assert LocalTree(folder, [tmp_path]).files


def test_a_link_that_leads_nowhere_is_no_file(tmp_path: Path) -> None:
    write(tmp_path / "fine")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert list(LocalTree(tmp_path, [tmp_path]).files) == ["fine"]


def test_a_link_to_the_folder_itself_ends(tmp_path: Path) -> None:
    write(tmp_path / "x")
    (tmp_path / "again").symlink_to(tmp_path)
    tree = LocalTree(tmp_path, [tmp_path], depth=3)
    assert list(tree.files) == ["again/again/again/x", "again/again/x", "again/x", "x"]


def test_non_files_are_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path / "x")
    assert list(LocalTree(tmp_path, [tmp_path]).files) == ["x"]


def test_a_folder_that_is_missing_or_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=f"{tmp_path}/none: No such file"):
        LocalTree(tmp_path / "none", [tmp_path])
    with pytest.raises(ModelInvalid, match=f"{tmp_path}/x: Not a directory"):
        LocalTree(write(tmp_path / "x"), [tmp_path])


def test_a_file_that_has_gone_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x")
    tree = LocalTree(tmp_path, [tmp_path])
    path.unlink()
    with pytest.raises(ModelInvalid, match=f"{path}: No such file"):
        tree.open("x")


def test_a_neighbour_that_leads_out_does_not_keep_a_file_from_being_listed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root / "m.gguf")
    write(tmp_path / "outside")
    (root / "other.gguf").symlink_to(tmp_path / "outside")
    assert list(LocalTree(root, [root], depth=0, wanted="m.gguf").files) == ["m.gguf"]
    for wanted in ("", "other.gguf"):
        with pytest.raises(ModelInvalid, match=r"other\.gguf is a link that leads out of ALLM_MODEL_ROOTS"):
            LocalTree(root, [root], depth=0, wanted=wanted)
