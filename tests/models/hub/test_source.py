"""Sources as operators write them, and the roots that local sources cannot leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.errors import InvalidRequest, ModelInvalid
from services.models.hub.source import MAX_SOURCE, FileTree, HubSource, LocalSource, LocalTree, parse_source
from tests.case import case


def refusal(text: str, roots: list[Path]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_source(text, roots)
    assert caught.value.param == "source"
    return caught.value.message


def test_a_repository_on_the_hub() -> None:
    for text, expected in [
        ("hf://org/name", HubSource("org/name", "", "")),
        ("hf://org/name@main", HubSource("org/name", "main", "")),
        ("hf://org/name@refs/pr/1", HubSource("org/name", "refs/pr/1", "")),
        ("hf://org/name#m.gguf", HubSource("org/name", "", "m.gguf")),
        (
            "hf://org/na.me-1_x@v1.0#Q4/m-00001-of-00002.gguf",
            HubSource("org/na.me-1_x", "v1.0", "Q4/m-00001-of-00002.gguf"),
        ),
        ("hf://org/name#a%20b.gguf", HubSource("org/name", "", "a b.gguf")),
    ]:
        with case(text=text, expected=expected):
            assert parse_source(text, []) == expected


def test_a_repository_that_cannot_be() -> None:
    for text in [
        "hf://",
        "hf://name",
        "hf://org/",
        "hf:///name",
        "hf://org/name/more",
        "hf://../name",
        "hf://org/..",
        "hf://org/.name",
        "hf://org/na me",
        "hf://org/name@",
        "hf://org/name#",
        "hf://org/name@a@b",
        "hf://org/name#a#b",
        "hf://org/name@a b",
        "hf://org/" + "x" * 97,
        "hf://örg/name",
        "HF://org/name",
    ]:
        with case(text=text):
            refusal(text, [])


def test_other_kinds_of_source_are_refused_with_those_there_are() -> None:
    for text in ["org/name", "/models/m", "https://example.org/m.gguf", "s3://a/b", "file:/m", " "]:
        with case(text=text):
            message = refusal(text, [])
            assert "hf://org/name" in message
            assert "file:///path" in message


def test_no_source_and_one_that_is_too_long(tmp_path: Path) -> None:
    assert "Missing required parameter" in refusal("", [])
    assert f"{MAX_SOURCE} characters" in refusal("hf://org/" + "x" * MAX_SOURCE, [])


# --- local sources


def test_a_path_below_a_root(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for text in (f"file://{tmp_path}/m", f"file://localhost{tmp_path}/m", f"file://{tmp_path}/other/../m"):
        assert parse_source(text, [other, tmp_path]) == LocalSource(tmp_path / "m")
    assert parse_source(f"file://{tmp_path}/a%20b%25", [tmp_path]) == LocalSource(tmp_path / "a b%")
    assert parse_source(f"file://{tmp_path}", [tmp_path]) == LocalSource(tmp_path)


def test_a_path_outside_of_the_roots_is_refused_whether_it_exists_or_not(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "root2").mkdir()
    for path in (tmp_path / "there", tmp_path / "not there", tmp_path / "root2", root / ".." / "there", Path("/")):
        message = refusal(f"file://{path}", [root])
        assert (
            message == f"{path} is not below one of ALLM_MODEL_ROOTS ({root}): move it there, or add its folder to them"
        )
    refusal(f"file://{root}/%2e%2e/there", [root])
    refusal(f"file://{root}", [])


def test_a_link_is_judged_by_where_it_leads_and_keeps_its_name(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / "out").symlink_to(elsewhere)
    (root / "in").symlink_to(root / "m")
    (root / "round").symlink_to(root / "round")
    refusal(f"file://{root}/out", [root])
    refusal(f"file://{root}/out/m", [root])
    assert parse_source(f"file://{root}/in", [root]) == LocalSource(root / "in")
    assert parse_source(f"file://{root}/out/m", [root, elsewhere]) == LocalSource(root / "out/m")
    assert "cannot be followed" in refusal(f"file://{root}/round", [root])


def test_a_root_may_be_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    assert parse_source(f"file://{tmp_path}/root/m", [tmp_path / "root"]) == LocalSource(tmp_path / "root/m")


def test_a_path_that_cannot_be() -> None:
    for text in ["file://models/m", "file://", "file://host/m", "file:///m?x=1", "file:///m#x.gguf", "file://[m"]:
        with case(text=text):
            assert "file:///absolute/path" in refusal(text, [Path("/")])


def test_a_path_with_a_zero_byte(tmp_path: Path) -> None:
    refusal(f"file://{tmp_path}/a%00b", [tmp_path])


def write(path: Path, content: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_a_folder_is_listed_recursively(tmp_path: Path) -> None:
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
