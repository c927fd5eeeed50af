"""Real speech with transcripts for tests: readings from LibriVox, and prompts of a telephone system.

`librivox()` returns five sentences at 16 kHz from the source distribution of pocketsphinx, which `make test` fetches.
`prompts()` returns sentences at 8 kHz from Debian's package asterisk-core-sounds-en.
"""

from __future__ import annotations

import functools
import gzip
import re
import wave
from dataclasses import dataclass
from pathlib import Path

FETCHED = Path(__file__).parents[1] / ".venv" / "speech" / "test" / "data" / "librivox"
SOUNDS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
SOUND_TEXTS = Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")
# Whole sentences of ordinary words, whose transcripts match the recordings.
PROMPTS = (
    "agent-alreadyon",
    "agent-newlocation",
    "conf-adminmenu-162",
    "demo-abouttotry",
    "demo-congrats",
    "demo-echotest",
    "demo-moreinfo",
    "demo-nogo",
    "dir-intro",
    "queue-periodic-announce",
)
LONG_PROMPT = "demo-instruct"  # longer than a window of 30 s


@dataclass(frozen=True)
class Clip:
    """A recording and its transcript."""

    path: Path  # WAV, int16, mono
    transcript: str

    @property
    def seconds(self) -> float:
        """Returns the duration."""
        with wave.open(str(self.path)) as file:
            return file.getnframes() / file.getframerate()


@functools.cache
def librivox() -> tuple[Clip, ...]:
    """Returns five sentences from a novel, 3 to 7 s each, at 16 kHz."""
    assert FETCHED.exists(), "pocketsphinx' recordings are not there: make test fetches them"
    names = (FETCHED / "fileids").read_text().split()
    texts = {name: (FETCHED / f"{name}.txt").read_text().strip() for name in names}
    # This transcript repeats a word.
    texts = {name: text.replace("a more a amiable", "a more amiable") for name, text in texts.items()}
    return tuple(Clip(FETCHED / f"{name}.wav", text) for name, text in texts.items())


@functools.cache
def prompts() -> tuple[Clip, ...]:
    """Returns ten announcements, 4 to 28 s each, at 8 kHz."""
    return tuple(_prompt(name) for name in PROMPTS)


@functools.cache
def long_prompt() -> Clip:
    """Returns an announcement longer than a window of 30 s, at 8 kHz."""
    return _prompt(LONG_PROMPT)


def clips() -> tuple[Clip, ...]:
    """Returns all short clips."""
    return (*librivox(), *prompts())


def _prompt(name: str) -> Clip:
    return Clip(SOUNDS / f"{name}.wav", _texts()[name])


@functools.cache
def _texts() -> dict[str, str]:
    with gzip.open(SOUND_TEXTS, "rt", encoding="utf-8") as file:
        lines = (re.fullmatch(r"([\w/-]+): (.*)", line.strip()) for line in file)
        return {line[1]: line[2] for line in lines if line}
