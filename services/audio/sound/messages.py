"""Messages between the audio service and a decoder process.

A decoder has one file at a time. The service sends `Open`; for a live feed it then answers each `Hungry` with a
`FeedChunk`. The decoder answers with `Begun`, perhaps `FileOpened`, any number of `DecodedSamples`, and `Ended` or
`OrderRefused`.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.sandbox.child import Begun, ChildReady, OrderRefused, Unusable

SAMPLE_RATE = 16_000  # of all decoded sound: one channel, int16 little-endian
BYTES_PER_SAMPLE = 2


def too_long(max_seconds: float, seconds: float = 0.0) -> str:
    """Returns the error message for sound over the limit; `seconds` is its length if that is known."""
    length = f"{seconds:.0f} seconds" if seconds > max_seconds else f"over {max_seconds:g} seconds"
    most = f"at most {max_seconds:g} seconds are accepted at once (ALLM_MAX_AUDIO_SECONDS)"
    return f"the audio is {length} long: {most}; split it"


@dataclass(frozen=True, slots=True)
class Pcm:
    """Sound without a container: interleaved samples of a stated format."""

    sample_rate: int
    channels: int
    encoding: str  # s16le or f32le


@dataclass(frozen=True, slots=True)
class Open:
    """The next file."""

    path: str  # empty: a live feed, sent in chunks
    pcm: Pcm | None  # None: a container that states its own format
    max_seconds: float  # of sound; more is refused


@dataclass(frozen=True, slots=True)
class FeedChunk:
    """The next bytes of a live feed; empty at its end."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FileOpened:
    """The file is open: its name is no longer needed."""


@dataclass(frozen=True, slots=True)
class Hungry:
    """The decoder waits for a chunk of a live feed."""

    count: int  # most bytes of the chunk


@dataclass(frozen=True, slots=True)
class DecodedSamples:
    """The next sound: 16 kHz, one channel, int16 little-endian."""

    samples: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """All sound has been sent."""


ToDecoder = Open | FeedChunk
FromDecoder = ChildReady | Unusable | Begun | FileOpened | Hungry | DecodedSamples | Ended | OrderRefused
