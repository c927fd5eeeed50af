"""A decoder process for one file at a time. The service starts it as `python -m services.audio.sound.decoding FD`.

A hostile file can harm only this process: it may use little, opens nothing but the upload, and ends with the service.
ffmpeg's own messages are not logged: they quote the metadata of files.
"""

from __future__ import annotations

import io
import socket
import struct
import sys

from services.audio.sound.decoding.messages import (
    Decoded,
    Ended,
    FromDecoder,
    Open,
    Opened,
    Refused,
    ToDecoder,
)
from services.audio.sound.decoding.refusal import Refusal
from services.sandbox.messages import Begun, Ready, Unusable
from services.worker.channel import BlockingChannel, ChannelClosed

try:
    import av

    # PyAV imports these for files with such streams, when the process can no longer import anything.
    import av.subtitles.codeccontext
    import av.subtitles.stream

    from services.audio.sound.decoding import confinement, container, pcm
    from services.audio.sound.decoding.feed import Feed
    from services.audio.sound.decoding.mixer import Mixer
    from services.audio.sound.decoding.tagged_file import TaggedFile
except ModuleNotFoundError as error:
    MISSING = error.name
else:
    MISSING = None
    av.logging.set_level(None)

MEMORY = "the file needs more memory to be decoded than a decoder may have"


def main() -> None:
    """Decodes files until the service is gone."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    channel: BlockingChannel[ToDecoder] = BlockingChannel(sock, ToDecoder)
    if MISSING:
        channel.send(Unusable(f"sound cannot be decoded here: the Python package {MISSING!r} is not installed"))
        return
    _warm_up()
    confinement.end_with(sock)
    confinement.confine()
    try:
        channel.send(Ready())
        while True:
            order = channel.receive()
            if not isinstance(order, Open):
                raise SystemExit(f"a {type(order).__name__} came in the place of an Open")
            channel.send(Begun())
            channel.send(_answer(order, channel))
    except ChannelClosed:
        return


def _answer(order: Open, channel: BlockingChannel[ToDecoder]) -> FromDecoder:
    """Decodes a file, sends its sound, and returns the last message about it."""
    confinement.allow_cpu(order.max_seconds)
    try:
        _decode(order, channel)
    except Refusal as refusal:
        return Refused(refusal.message)
    except MemoryError:
        return Refused(MEMORY)
    except ChannelClosed:
        raise
    except Exception as error:
        # Any other error of a library is about the file. Its text may quote the file and is not sent.
        return Refused(f"the file cannot be decoded ({type(error).__name__})")
    return Ended()


def _decode(order: Open, channel: BlockingChannel[ToDecoder]) -> None:
    mixer = Mixer(lambda samples: channel.send(Decoded(samples)), order.max_seconds)
    file: TaggedFile | Feed
    if order.path:
        with confinement.may_open():
            file = TaggedFile(order.path)
        channel.send(Opened())
    else:
        file = Feed(channel, mixer.flush)
    try:
        if order.pcm:
            pcm.decode(file, order.pcm, mixer)
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
