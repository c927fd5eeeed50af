"""Subtitles compared with the output of Whisper's own writers."""

from __future__ import annotations

import importlib.util
import io
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from services.audio.api.openai import clock, cue_text, srt, vtt
from services.audio.engine.messages import Segment
from tests.audio.api.scripted_transcriptions import segment


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """Imports only whisper.utils: the package itself would also load torch."""
    package = importlib.util.find_spec("whisper")
    assert package is not None
    assert package.origin is not None
    spec = importlib.util.spec_from_file_location("whisper_utils", Path(package.origin).with_name("utils.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_up(count: int) -> list[Segment]:
    """Generates consecutive segments over several hours, some with arrows in their text."""
    chance = random.Random(3)  # noqa: S311
    at, segments = 0.0, []
    for index in range(count):
        start = at + chance.random()
        at = start + chance.random() * 30
        text = " ".join(chance.choices(["Zürich", "that's", "三", "-->", "two\u00a0words", "…"], k=5))
        segments.append(segment(index, start, at, f" {text}"))
    return segments


def by_the_reference(writer: Any, segments: list[Segment]) -> str:
    file = io.StringIO()
    found = [{"start": each.start, "end": each.end, "text": each.text} for each in segments]
    writer.write_result({"segments": found}, file=file)
    return file.getvalue()


def test_srt_is_as_whispers(reference: ModuleType) -> None:
    segments = made_up(500)
    assert segments[-1].end > 3600
    assert srt(segments) == by_the_reference(reference.WriteSRT("."), segments)


def test_vtt_is_as_whispers_with_hours(reference: ModuleType) -> None:
    segments = made_up(500)
    writer = reference.WriteVTT(".")
    writer.always_include_hours = True
    assert vtt(segments) == by_the_reference(writer, segments)


def test_segments_without_text_have_no_cue_and_no_number() -> None:
    segments = [segment(0, 0, 1, " one"), segment(1, 1, 2, "  "), segment(2, 2, 3, " two")]
    assert srt(segments) == ("1\n00:00:00,000 --> 00:00:01,000\none\n\n2\n00:00:02,000 --> 00:00:03,000\ntwo\n\n")
    assert vtt([]) == "WEBVTT\n\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" a --> b ", "a -> b"),
        ("a ---> b", "a -> b"),
        ("a ---->> b", "a ->> b"),
        (" one\n\n two \r\n", "one\ntwo"),
        ("\n", ""),
    ],
)
def test_text_that_would_break_a_cue(text: str, shown: str) -> None:
    assert cue_text(text) == shown


def test_vtt_escapes_what_would_be_a_tag() -> None:
    shown = vtt([segment(0, 0, 1, " AT&T <i>said</i> 1 > 0")])
    assert shown == "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nAT&amp;T &lt;i>said&lt;/i> 1 > 0\n\n"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "00:00:00,000"),
        (-0.01, "00:00:00,000"),
        (59.9996, "00:01:00,000"),
        (3599.9999, "01:00:00,000"),
        (360_000.5, "100:00:00,500"),
    ],
)
def test_times(seconds: float, shown: str) -> None:
    assert clock(seconds, ",") == shown
