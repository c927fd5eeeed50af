"""Speech in a real browser: a file, the microphone, and their transcripts."""

from __future__ import annotations

import re
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import openai
import pytest

from tests.console.axe import problems
from tests.console.chromium import Opener, Page, running_chromium
from tests.speech import librivox
from tests.stack import SPEECH_MODEL, Stack

Open = Callable[[str], Page]
DONE = "document.querySelector('.transcript[aria-busy=false]')"
PHRASES = "[...document.querySelectorAll('.phrase')].map((each) => each.innerText).join(' ')"

# The text of the transcript, without its times.
TEXT = """
[...document.querySelectorAll('.phrase')].map((each) => [...each.childNodes].slice(1)
  .map((node) => node.textContent).join('').trim()).join(' ')
"""

# Plays so slowly that the marked word stays for minutes, however busy the machine is.
SLOWLY = "document.querySelector('audio').playbackRate = 0.0625"
# Keeps the file that the browser would download.
SAVED = """
URL.createObjectURL = (blob) => { window.saved = blob.text(); return 'blob:kept'; };
HTMLAnchorElement.prototype.click = () => {}; 1
"""


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def transcribed(page: Page, file: Path) -> None:
    """Transcribes a file in the page."""
    page.wait("document.querySelector('input[type=file]')")
    page.attach("input[type=file]", file)
    page.wait(DONE)


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sentences with a pause of two seconds between them."""
    file = tmp_path_factory.mktemp("paused") / "paused.wav"
    with wave.open(str(file), "wb") as target:
        for number, clip in enumerate(librivox()[:2]):
            with wave.open(str(clip.path)) as source:
                if not number:
                    target.setparams(source.getparams())
                target.writeframes(source.readframes(source.getnframes()))
                target.writeframes(bytes(source.getframerate() * 2 * 2))
    return file


def test_a_file_is_transcribed_as_rest_does_and_its_words_follow_the_sound(
    view: Open, stack: Stack, paused: Path
) -> None:
    rest = openai.OpenAI(base_url=stack.base_url, api_key="none").audio.transcriptions.create(
        model=SPEECH_MODEL, file=paused, response_format="verbose_json", timestamp_granularities=["word"]
    )
    page = view("audio")
    transcribed(page, paused)
    page.wait_text("Transcribed")
    assert page.evaluate(TEXT) == rest.text.strip()
    # A click on a word jumps to it, and marks it.
    page.evaluate(SLOWLY)
    page.click("button.word:nth-of-type(4)")
    page.wait("document.querySelector('.word.heard')")
    page.evaluate("document.querySelector('audio').pause()")


def test_a_reload_keeps_the_transcript_and_its_sound(view: Open) -> None:
    page = view("audio")
    page.fill("input", "Language", "English")
    transcribed(page, librivox()[0].path)
    said = page.evaluate(TEXT)
    page.wait_kept("drafts", "kept[0]?.state === 'done'")
    page.reload()
    page.wait_text("Transcribed")
    assert page.evaluate(TEXT) == said
    assert page.evaluate("document.querySelector('aside input').value") == "English"
    page.wait("document.querySelector('audio').readyState > 0")
    page.evaluate(SLOWLY)
    page.click("button.word", said.split()[0])
    page.wait("document.querySelector('.word.heard')")
    page.evaluate("document.querySelector('audio').pause()")
    page.click("button", "Delete")
    page.wait_text("Transcribe speech")
    page.reload()
    page.wait_text("Transcribe speech")


def test_a_reload_keeps_an_unfinished_recording(view: Open) -> None:
    page = view("audio")
    page.wait("document.querySelector('input[type=file]')")
    page.evaluate("window.fetch = () => new Promise(() => {}); 1")  # the server never answers
    page.attach("input[type=file]", librivox()[0].path)
    page.wait_text("Transcribing the whole file")
    page.wait_kept("drafts", "kept[0]?.state === 'running'")
    page.reload()
    page.wait_text("The page was left before the transcription was complete.")
    page.click("button", "Transcribe again")
    page.wait_text("Transcribed")
    assert words(page.evaluate(PHRASES)) & words(librivox()[0].transcript)


def test_a_language_that_is_unknown_is_marked(view: Open) -> None:
    page = view("audio")
    page.fill("input", "Language", "Klingon")
    transcribed(page, librivox()[0].path)
    page.wait("document.querySelector('aside input[aria-invalid]')")
    assert "Klingon" in page.evaluate("document.querySelector('aside .problem').innerText")
    page.fill("input", "Language", "en")
    page.wait("!document.querySelector('aside input[aria-invalid]')")
    page.click("button", "Transcribe again")
    page.wait_text("Transcribed")


def test_subtitles_are_saved(view: Open) -> None:
    page = view("audio")
    transcribed(page, librivox()[0].path)
    page.evaluate(SAVED)
    page.click("button", "Save as srt")
    assert re.match(r"1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n\w", page.evaluate("window.saved"))
    page.click("button", "Save as vtt")
    assert re.match(r"WEBVTT\n\n00:00:\d\d\.\d{3} --> 00:00:\d\d\.\d{3}\n\w", page.evaluate("window.saved"))


def test_a_file_with_its_index_at_the_end_is_read_as_a_whole(view: Open, tmp_path: Path) -> None:
    page = view("audio")
    speech = librivox()[0]
    indexed = tmp_path / "speech.m4a"
    with av.open(str(speech.path)) as source, av.open(str(indexed), "w", format="ipod") as target:
        stream = target.add_stream("aac", rate=16000, layout="mono")
        for frame in source.decode(audio=0):
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
    transcribed(page, indexed)
    expected = words(speech.transcript)
    assert len(words(page.evaluate(PHRASES)) & expected) / len(expected) > 0.7


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "The file is empty.", id="empty"),
        pytest.param(b"Dear reader, this is no sound. " * 100, "Supported formats: wav", id="no sound"),
    ],
)
def test_a_bad_file_is_explained_in_a_sentence(view: Open, tmp_path: Path, content: bytes, said: str) -> None:
    page = view("audio")
    wrong = tmp_path / "letter.wav"
    wrong.write_bytes(content)
    transcribed(page, wrong)
    sentence = page.evaluate("document.querySelector('.note.bad p').innerText")
    assert said in sentence
    assert sentence.endswith(".")


def test_a_file_over_the_limit_is_explained(tab: Opener, stack: Stack, tmp_path: Path) -> None:
    """The server's answer arrives, or the closed connection: both sentences name the limit."""
    large = tmp_path / "large.wav"
    large.write_bytes(librivox()[0].path.read_bytes() + bytes(33 * 1024 * 1024))
    page = tab(stack, "audio")
    transcribed(page, large)
    assert "ALLM_MAX_AUDIO_BYTES" in page.evaluate("document.querySelector('.note.bad').innerText")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_a_transcript_is_used_by_keys_alone(tab: Opener, stack: Stack, width: int, scheme: str) -> None:
    page = tab(stack, "audio", width=width)
    page.colours(scheme)
    page.wait_text("Transcribe speech")
    assert problems(page) == [], "empty"
    page.tab_to("input[type=file]")
    page.pick(librivox()[0].path)
    page.wait(DONE)
    page.evaluate(SLOWLY)
    page.tab_to("button.word", "Dashwood")
    page.press("Enter")
    page.wait("document.querySelector('.word.heard') && !document.querySelector('audio').paused")
    page.evaluate("document.querySelector('audio').pause()")
    assert problems(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate(SAVED)
    page.tab_to("button", "Save as vtt")
    page.press("Enter")
    assert page.evaluate("window.saved.then((text) => text.startsWith('WEBVTT'))")
    page.tab_to("button", "Delete")
    page.press("Space")
    page.wait_text("Transcribe speech")


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
    # The silence after the sentence makes it final. The browser's microphone drops sound on a busy machine.
    expected = words(librivox()[0].transcript)
    said = "|".join(sorted(word for word in expected if len(word) > 2))
    page.wait(f"/\\b({said})\\b/i.test({PHRASES})")
    assert "Recording" in page.text()
    page.click("button", "Stop recording")
    page.wait_text("Transcribed")
    assert words(page.evaluate(PHRASES)) & expected
    page.wait("document.querySelector('audio')?.src.startsWith('blob:')")
