"""Names of models: the spellings of the hub, and Ollama's tag."""

from __future__ import annotations

import pytest

from services.models.hub.names import after_hub, known_name, tagged


def test_every_spelling_of_the_hub_is_known() -> None:
    for hub in (
        "hf.co/",
        "huggingface.co/",
        "www.huggingface.co/",
        "https://huggingface.co/",
        "http://hf.co/",
        "hf://",
    ):
        assert after_hub(f"{hub}org/m") == "org/m"
    for other in ("org/m", "my.hf.co/org/m", "file:///hf.co/m", "hf.com/org/m"):
        assert after_hub(other) is None


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("a", "a"),
        ("a:latest", "a"),
        ("b", "b:latest"),
        ("b:latest", "b:latest"),
        ("c:1b", "c:1b"),
        ("unknown", "unknown"),
        ("unknown:latest", "unknown"),
        ("unknown:1b", "unknown:1b"),
        ("hf.co/org/m:Q8_0", "hf.co/org/m:Q8_0"),
        ("huggingface.co/org/m:Q8_0", "hf.co/org/m:Q8_0"),
        ("hf://org/m#Q8_0", "hf.co/org/m:Q8_0"),
        ("hf://org/n:latest", "hf.co/org/n"),
    ],
)
def test_a_name_is_known_with_and_without_its_tag(asked: str, expected: str) -> None:
    known = {"a", "b:latest", "c:1b", "hf.co/org/m:Q8_0", "hf.co/org/n"}
    assert known_name(asked, known.__contains__) == expected


def test_lists_show_a_tag() -> None:
    assert [tagged(name) for name in ("a", "a:1b")] == ["a:latest", "a:1b"]
