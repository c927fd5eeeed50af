"""Sources as operators write them, and the roots that local sources cannot leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.errors import InvalidRequest
from services.models.hub.source import MAX_SOURCE, HubSource, LocalSource, parse_source
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
        assert message == f"{path} is not below one of ALLM_MODEL_ROOTS ({root})"
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
