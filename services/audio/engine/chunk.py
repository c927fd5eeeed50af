"""Messages between the preparation thread and the batch loop: requests, and windows as spectrograms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from services.audio.engine.mel import Mel
from services.audio.engine.messages import Decoding
from services.audio.engine.window import Window


@dataclass(frozen=True, slots=True)
class Opened:
    """A valid request; its chunks follow."""

    request: int
    client: str
    decoding: Decoding
    prompt: list[int]  # tokens of the caller's prompt
    deadline: float | None = None  # on the monotonic clock; the caller waits no longer


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A window of a request, ready to be encoded."""

    request: int
    number: int  # in the request, from 0; of the future window if `partial`
    mel: Mel  # [n_mels, WINDOW_FRAMES]
    window: Window  # without its samples
    frames: int  # columns of `mel` that hold sound
    partial: bool = False  # the speech is still open
    first: int = 0  # column of the window at which `mel` begins

    def rest(self, columns: int) -> Chunk:
        """Returns the chunk without its first `columns` columns."""
        mel = np.zeros_like(self.mel)
        mel[:, : self.frames - columns] = self.mel[:, columns : self.frames]
        return replace(self, mel=mel, frames=self.frames - columns, first=self.first + columns)


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a request's chunks."""

    request: int
    samples: int  # of the request's sound


@dataclass(frozen=True, slots=True)
class Taken:
    """To the preparation: the loop has taken a chunk, so another may follow."""

    request: int
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Seek:
    """To the preparation: the start of the next window in columns of the file, without `vad`."""

    request: int
    frame: int
