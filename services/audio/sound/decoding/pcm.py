"""Raw samples as frames: the format is the caller's statement; no byte is inspected to guess it."""

from __future__ import annotations

import av

from services.audio.sound.decoding.feed import Feed
from services.audio.sound.decoding.messages import Pcm
from services.audio.sound.decoding.mixer import Mixer
from services.audio.sound.decoding.tagged_file import TaggedFile
from services.sandbox.child import Refusal

SAMPLES = {"s16le": ("s16", 2), "f32le": ("flt", 4)}  # ffmpeg's name, bytes per sample
PIECE_BYTES = 64 * 1024


def decode(file: TaggedFile | Feed, pcm: Pcm, mixer: Mixer) -> None:
    """Reads samples to the end of the file into `mixer`. Raises Refusal if it ends within a sample."""
    name, width = SAMPLES[pcm.encoding]
    layout = "mono" if pcm.channels == 1 else f"{pcm.channels} channels"
    size = width * pcm.channels
    rest = b""
    while data := file.read(PIECE_BYTES):
        data = rest + data
        count = len(data) // size
        data, rest = data[: count * size], data[count * size :]
        if not count:
            continue
        frame = av.AudioFrame(format=name, layout=layout, samples=count)
        frame.sample_rate = pcm.sample_rate
        frame.planes[0].update(data)
        mixer.add(frame)
        if isinstance(file, Feed):
            file.heard()
    if rest:
        raise Refusal(f"the sound ends within a sample: {len(rest)} bytes are left over of {size} for each sample")
    mixer.end()
