"""The models' answers while the stack is healthy: every later answer is compared with them.

A greedy answer may diverge at a step where two tokens are almost equally likely, because KV cells that were computed
in another batch differ in the last bits. So each text is requested with its logprobs once, and used only up to the
first such step. Transcripts and images are compared with a tolerance far below the difference between two inputs.
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
MARGIN = 0.3  # minimum lead of the likeliest token over the next one, in logprobs
TOKENS = 32
SHORT_TOKENS = 12
ALIKE = 0.8  # share of equal words
SHADES = 8.0  # of 255: largest mean difference between two images of one seed
PICTURE = {"model": IMAGE_MODEL, "prompt": "a red circle on a blue background", "seed": 7, "steps": 4}
SECONDS = 240.0


@dataclass(frozen=True)
class KnownText:
    """A prompt, and the first tokens of its greedy answer."""

    prompt: str
    tokens: int
    text: str

    @property
    def body(self) -> dict[str, object]:
        """The body of its request."""
        messages = [{"role": "user", "content": self.prompt}]
        return {"model": MODEL, "messages": messages, "max_tokens": self.tokens, "temperature": 0}


@dataclass(frozen=True)
class KnownAnswers:
    """The known answers of one stack."""

    texts: tuple[KnownText, ...]
    clip: Path
    words: list[str]
    picture: Image.Image
    sentences: int = 2  # sentences in a stream's text, which the request itself contains

    def hears(self, text: str) -> bool:
        """Checks that a transcript matches the clip."""
        return SequenceMatcher(None, self.words, _words(text)).ratio() >= ALIKE

    def shows(self, png: bytes) -> bool:
        """Checks that a file contains the whole image. Raises OSError for an invalid image."""
        found = _opened(png)
        if found.size != self.picture.size:
            return False
        return max(ImageStat.Stat(ImageChops.difference(found, self.picture)).mean) <= SHADES


# For callers who only stream: those need no known answers.
SHORT_STREAMS = KnownAnswers((), Path(os.devnull), [], Image.new("RGB", (1, 1)), sentences=1)


def ask(stack: Stack, *, short: bool = False) -> KnownAnswers:
    """Asks a healthy stack, which loads all models meanwhile. `short`: requests short texts."""
    tokens = SHORT_TOKENS if short else TOKENS
    with httpx.Client(base_url=f"{stack.base_url}/", timeout=SECONDS) as client:
        texts = [_text(client, prompt, tokens) for prompt in PROMPTS]
        # A text that diverges in its first half is useless.
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
