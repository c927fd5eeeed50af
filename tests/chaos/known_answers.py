"""What the models answer while nothing is wrong: every later answer is held against it.

A greedy answer may turn at a step where two tokens are nearly as likely as each other, because cells that were computed
in another batch differ in the last bits. So a text is asked for with its logprobs once, and used up to the first such
step only. Sound and pictures are compared with a little slack, far less than another sound or picture would need.
"""

from __future__ import annotations

import base64
import io
import os
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import httpx
from PIL import Image, ImageChops, ImageStat

from tests.speech import librivox
from tests.stack import IMAGE_MODEL, MODEL, SPEECH_MODEL, Stack

PROMPTS = tuple(f"Write the numbers {first}, up to 60, separated by commas." for first in ("1, 2, 3", "1, 2, 3, 4, 5"))
MARGIN = 0.3  # by which the likeliest token is ahead of the next one, in logprobs
TOKENS = 32
SHORT_TOKENS = 12
ALIKE = 0.8  # share of words
SHADES = 8.0  # of 255, between two pictures of one seed
PICTURE = {"model": IMAGE_MODEL, "prompt": "a red circle on a blue background", "seed": 7, "steps": 4}
SECONDS = 240.0


@dataclass(frozen=True)
class KnownText:
    """A prompt, and so many tokens of its greedy answer."""

    prompt: str
    tokens: int
    text: str

    @property
    def body(self) -> dict[str, object]:
        """The request for it."""
        messages = [{"role": "user", "content": self.prompt}]
        return {"model": MODEL, "messages": messages, "max_tokens": self.tokens, "temperature": 0}


@dataclass(frozen=True)
class KnownAnswers:
    """Of one stack."""

    texts: tuple[KnownText, ...]
    clip: Path
    words: list[str]
    picture: Image.Image
    sentences: int = 2  # of a stream's text, which the request itself names

    def hears(self, text: str) -> bool:
        """Whether a transcript is that of the clip."""
        return SequenceMatcher(None, self.words, _words(text)).ratio() >= ALIKE

    def shows(self, png: bytes) -> bool:
        """Whether a file holds the picture, whole. Raises OSError for what is no picture."""
        found = _opened(png)
        if found.size != self.picture.size:
            return False
        return max(ImageStat.Stat(ImageChops.difference(found, self.picture)).mean) <= SHADES


# For callers who ask for streams alone: those need no known answers.
SHORT_STREAMS = KnownAnswers((), Path(os.devnull), [], Image.new("RGB", (1, 1)), sentences=1)


def ask(stack: Stack, *, short: bool = False) -> KnownAnswers:
    """Asks a stack with which nothing is wrong; loads all models meanwhile. `short`: asks for short texts."""
    tokens = SHORT_TOKENS if short else TOKENS
    with httpx.Client(base_url=f"{stack.base_url}/", timeout=SECONDS) as client:
        texts = [_text(client, prompt, tokens) for prompt in PROMPTS]
        # A text whose first half is not certain is of no use.
        certain = tuple(text for text in texts if text.tokens >= tokens // 2)
        assert certain, texts
        clip = min(librivox(), key=lambda clip: clip.seconds)
        with clip.path.open("rb") as file:
            heard = client.post("audio/transcriptions", data={"model": SPEECH_MODEL}, files={"file": file})
        drawn = client.post("images/generations", json=PICTURE)
    assert (heard.status_code, drawn.status_code) == (200, 200), (heard.text[:500], drawn.text[:500], stack.output())
    png = base64.b64decode(drawn.json()["data"][0]["b64_json"])
    return KnownAnswers(certain, clip.path, _words(heard.json()["text"]), _opened(png), 1 if short else 2)


def _text(client: httpx.Client, prompt: str, tokens: int) -> KnownText:
    body = KnownText(prompt, tokens, "").body | {"logprobs": True, "top_logprobs": 2}
    answer = client.post("chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    steps = answer.json()["choices"][0]["logprobs"]["content"]
    certain = 0
    for step in steps:
        first, second = step["top_logprobs"]
        if first["logprob"] - second["logprob"] < MARGIN:
            break
        certain += 1
    return KnownText(prompt, certain, "".join(step["token"] for step in steps[:certain]))


def _words(text: str) -> list[str]:
    return "".join(letter for letter in text.lower() if letter.isalpha() or letter.isspace()).split()


def _opened(png: bytes) -> Image.Image:
    with Image.open(io.BytesIO(png)) as picture:
        return picture.convert("RGB")
