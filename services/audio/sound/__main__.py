"""A decoder process for one file at a time. The service starts it as `python -m services.audio.sound FD`.

A hostile file can harm only this process: it may use little, opens nothing but the upload, and ends with the service.
ffmpeg's own messages are not logged: they quote the metadata of files.
"""

from __future__ import annotations

import io
import struct

from services.audio.sound.messages import DecodedSamples, Ended, FileOpened, Open, ToDecoder
from services.sandbox import child
from services.sandbox.child import Refusal
from services.sandbox.limits import may_open
from services.worker.channel import BlockingChannel, ChannelClosed

try:
    import av

    # PyAV imports these for files with such streams, when the process can no longer import anything.
    import av.subtitles.codeccontext
    import av.subtitles.stream

    from services.audio.sound import container
    from services.audio.sound.container import Feed, TaggedFile
    from services.audio.sound.mixer import Mixer
except ModuleNotFoundError as error:
    UNUSABLE = f"audio cannot be decoded here: the Python package {error.name!r} is not installed"
else:
    UNUSABLE = ""
    av.logging.set_level(None)

MEMORY_BYTES = 512 * 1024 * 1024  # in addition to the libraries; tables of a day-long m4a need under a tenth
CPU_SECONDS = 30.0  # for any file
SOUND_PER_CPU_SECOND = 40.0  # and one second more for this much sound; slow machines decode several times faster


def main() -> None:
    """Decodes files until the service is gone."""
    child.run(ToDecoder, _prepare, UNUSABLE)


def _prepare(channel: BlockingChannel[ToDecoder]) -> child.ChildWork:
    _warm_up()
    return child.ChildWork(
        memory_bytes=MEMORY_BYTES,
        cpu_seconds=_cpu_seconds,
        answer=lambda order: _answer(order, channel),
        no_memory="the file needs more memory to be decoded than a decoder is allowed",
    )


def _cpu_seconds(order: ToDecoder) -> float:
    if not isinstance(order, Open):
        raise SystemExit(f"a {type(order).__name__} came instead of an Open")
    return CPU_SECONDS + order.max_seconds / SOUND_PER_CPU_SECOND


def _answer(order: Open, channel: BlockingChannel[ToDecoder]) -> Ended:
    """Decodes a file, sends its sound, and returns the last message about it. Raises Refusal and MemoryError."""
    try:
        _decode(order, channel)
    except (Refusal, MemoryError, ChannelClosed):
        raise
    except Exception as error:
        # Any other error of a library is about the file. Its text may quote the file and is not sent.
        raise Refusal(f"the file cannot be decoded ({type(error).__name__})") from None
    return Ended()


def _decode(order: Open, channel: BlockingChannel[ToDecoder]) -> None:
    mixer = Mixer(lambda samples: channel.send(DecodedSamples(samples)), order.max_seconds)
    file: TaggedFile | Feed
    if order.path:
        with may_open():
            file = TaggedFile(order.path)
        channel.send(FileOpened())
    else:
        file = Feed(channel, mixer.flush)
    try:
        if order.pcm:
            container.decode_pcm(file, order.pcm, mixer)
        else:
            container.decode(file, mixer)
    finally:
        file.close()


def _warm_up() -> None:
    """Decodes a short silence, so that the first file does not wait for tables and filters."""
    samples = bytes(2 * 2 * 4410)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 2, 44100, 44100 * 4, 4, 16)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(samples)) + samples
    mixer = Mixer(lambda _: None, 1.0)
    file = io.BytesIO(struct.pack("<4sI", b"RIFF", len(body)) + body)
    container.decode(io.BufferedReader(file), mixer)


if __name__ == "__main__":
    main()
