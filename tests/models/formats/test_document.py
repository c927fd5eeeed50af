"""Untrusted JSON: bounded in size; errors name the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.errors import ModelInvalid
from services.models.formats.document import CONFIG_BYTES, read_list, read_object
from tests.case import case
from tests.models.formats.handmade_models import WatchedTree, local


def read(folder: Path, data: str | bytes, *, strict: bool = False) -> dict[str, object]:
    (folder / "x.json").write_bytes(data.encode() if isinstance(data, str) else data)
    return read_object(local(folder), "x.json", strict=strict)


def test_an_object_and_a_list(tmp_path: Path) -> None:
    assert read(tmp_path, '{"a": [1, "größer"]}') == {"a": [1, "größer"]}
    (tmp_path / "x.json").write_text("[1]")
    assert read_list(local(tmp_path), "x.json") == [1]


def test_published_files_are_read_leniently_unless_strict(tmp_path: Path) -> None:
    assert read(tmp_path, '{"time_step_limit": [0.0, Infinity], "a": 1, "a": 2}')["a"] == 2
    for data, words in (('{"a": NaN}', "NaN is not allowed"), ('{"a": {"b": 1, "b": 1}}', "'b' appears twice")):
        with pytest.raises(ModelInvalid, match=words):
            read(tmp_path, data, strict=True)


def test_non_objects_are_refused_by_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    for strict in [False, True]:
        for data, words in [
            ("", "not valid JSON"),
            ("{", "not valid JSON"),
            ("{} {}", "not valid JSON"),
            ("{'a': 1}", "not valid JSON"),
            ("[]", "is not a JSON object"),
            ('"x"', "is not a JSON object"),
            ("7", "is not a JSON object"),
            (b"\xff\xff", "not valid JSON"),
            ("{}".encode("utf-16"), "not valid JSON"),
            ('{"a":' + "[" * 200_000, "nested too deeply"),
        ]:
            with case(strict=strict, data=data, words=words):
                tmp_path = tmp_path_factory.mktemp("case")
                with pytest.raises(ModelInvalid, match=words) as caught:
                    read(tmp_path, data, strict=strict)
                assert caught.value.message.startswith("x.json is ")


def test_a_list_is_no_object_nor_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ModelInvalid, match=r"x\.json is not a JSON list"):
        read_list(local(tmp_path), "x.json")


def test_a_file_over_the_limit_is_not_opened(tmp_path: Path) -> None:
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(CONFIG_BYTES + 1)
    tree = WatchedTree(tmp_path)
    with pytest.raises(ModelInvalid, match=f"x.json has {CONFIG_BYTES + 1} bytes; at most {CONFIG_BYTES} are allowed"):
        read_object(tree, "x.json")
    assert tree.opened == []


def test_a_file_that_is_missing_or_has_become_shorter(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    tree = local(tmp_path)
    with pytest.raises(ModelInvalid, match=r"y\.json is missing"):
        read_object(tree, "y.json")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ModelInvalid, match=r"x\.json is cut off: it has 2 bytes; 8 were expected"):
        read_object(tree, "x.json")
    (tmp_path / "x.json").unlink()
    with pytest.raises(ModelInvalid, match=r"x\.json: No such file"):
        read_object(tree, "x.json")
