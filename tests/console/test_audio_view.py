"""Speech in a real browser: a file, the microphone, and their transcripts."""

from __future__ import annotations

import re
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import pytest

from tests.console.chromium import Page, running_chromium
from tests.speech import librivox
from tests.stack import Stack

Open = Callable[[str], Page]
DONE = "document.querySelector('.transcript[aria-busy=false]')"
PHRASES = "[...document.querySelectorAll('.phrase')].map((each) => each.innerText).join(' ')"


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def test_a_file_is_transcribed_and_its_words_follow_the_sound(view: Open) -> None:
    page = view("audio")
    speech = librivox()[0]
    page.wait("document.querySelector('input[type=file]')")
    page.attach("input[type=file]", speech.path)
    page.wait(DONE)
    page.wait_text("Transcribed")
    said = words(page.evaluate(PHRASES))
    expected = words(speech.transcript)
    assert len(said & expected) / len(expected) > 0.7
    # A click on a word jumps to it, and marks it.
    page.click(".word:nth-of-type(4)")
    page.wait("document.querySelector('.word.heard')")
    page.evaluate("document.querySelector('audio').pause()")


def test_subtitles_are_saved(view: Open) -> None:
    page = view("audio")
    page.wait("document.querySelector('input[type=file]')")
    page.attach("input[type=file]", librivox()[0].path)
    page.wait(DONE)
    # The file that the browser would download.
    page.evaluate(
        "URL.createObjectURL = (blob) => { window.saved = blob.text(); return 'blob:kept'; };"
        "HTMLAnchorElement.prototype.click = () => {}; 1"
    )
    page.click("button", "Save as srt")
    assert re.match(r"1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n\w", page.evaluate("window.saved"))
    page.click("button", "Save as vtt")
    assert re.match(r"WEBVTT\n\n00:00:\d\d\.\d{3} --> 00:00:\d\d\.\d{3}\n\w", page.evaluate("window.saved"))


def test_a_file_with_its_index_at_the_end_is_read_as_a_whole(view: Open, tmp_path: Path) -> None:
    """A stream cannot begin with such a file: the page sends it again as a whole."""
    page = view("audio")
    speech = librivox()[0]
    indexed = tmp_path / "speech.m4a"
    with av.open(str(speech.path)) as source, av.open(str(indexed), "w", format="ipod") as target:
        stream = target.add_stream("aac", rate=16000, layout="mono")
        for frame in source.decode(audio=0):
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
    page.wait("document.querySelector('input[type=file]')")
    page.attach("input[type=file]", indexed)
    page.wait_text("Transcribed")
    expected = words(speech.transcript)
    assert len(words(page.evaluate(PHRASES)) & expected) / len(expected) > 0.7


def test_file_without_sound_is_refused_in_a_sentence(view: Open, tmp_path: Path) -> None:
    page = view("audio")
    page.wait("document.querySelector('input[type=file]')")
    wrong = tmp_path / "letter.wav"
    wrong.write_text("Dear reader, this is no sound. " * 100)
    page.attach("input[type=file]", wrong)
    page.wait("document.querySelector('.note.bad')")
    assert page.evaluate("document.querySelector('.note.bad p').innerText").endswith(".")


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One sentence, then silence: the browser's microphone repeats it."""
    file = tmp_path_factory.mktemp("spoken") / "spoken.wav"
    with wave.open(str(librivox()[0].path)) as source, wave.open(str(file), "wb") as target:
        target.setparams(source.getparams())
        target.writeframes(source.readframes(source.getnframes()))
        target.writeframes(bytes(source.getframerate() * 2 * 20))
    return file


@pytest.fixture
def microphone(stack: Stack, spoken: Path) -> Iterator[Page]:
    with running_chromium(f"--use-file-for-fake-audio-capture={spoken}") as browser:
        page = browser.open(f"http://127.0.0.1:{stack.port}/#/audio")
        yield page
        assert page.complaints() == []


def test_the_microphone_is_transcribed_while_it_records(microphone: Page) -> None:
    page = microphone
    page.click("button", "Use microphone")
    page.wait_text("Recording")
    heard = f"({PHRASES} + (document.querySelector('.partial')?.innerText ?? '')).length > 20"
    page.wait(heard)
    assert "Recording" in page.text()
    page.click("button", "Stop recording")
    page.wait_text("Transcribed")
    expected = words(librivox()[0].transcript)
    assert words(page.evaluate(PHRASES)) & expected
    page.wait("document.querySelector('audio')?.src.startsWith('blob:')")
