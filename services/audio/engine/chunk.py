"""What the preparation thread hands to the batch loop: requests, and their windows made into spectrograms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from services.audio.engine.mel import Mel
from services.audio.engine.messages import Decoding
from services.audio.engine.window import Window


@dataclass(frozen=True, slots=True)
class Opened:
    """A request that is fit to run; its chunks follow."""

    request: int
    client: str
    decoding: Decoding
    prompt: list[int]  # tokens of the caller's prompt
    deadline: float | None = None  # on the monotonic clock: then nobody waits any more


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A window of a request, ready to be encoded."""

    request: int
    number: int  # in the request, from 0; that of the window it will become, when `partial`
    mel: Mel  # [n_mels, WINDOW_FRAMES]
    window: Window  # without its sound
    frames: int  # columns of `mel` that are sound
    partial: bool = False  # whether it is speech that is not over
    first: int = 0  # column of the window that `mel` begins with

    def rest(self, columns: int) -> Chunk:
        """What is left of it behind so many columns."""
        mel = np.zeros_like(self.mel)
        mel[:, : self.frames - columns] = self.mel[:, columns : self.frames]
        return replace(self, mel=mel, frames=self.frames - columns, first=self.first + columns)


@dataclass(frozen=True, slots=True)
class Closed:
    """No chunk of the request follows."""

    request: int
    samples: int  # of its sound


@dataclass(frozen=True, slots=True)
class Taken:
    """To the preparation: the loop has taken a chunk, so that another may follow."""

    request: int
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Seek:
    """To the preparation: where the next window begins, in columns of the file, when there is no `vad`."""

    request: int
    frame: int
