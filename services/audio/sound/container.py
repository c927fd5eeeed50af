"""Sound files: the allowed demuxers and decoders, and the errors for files that they cannot read; and their input.

Only formats that hold sound themselves are allowed. A playlist, a script or a reference to another location is
refused by its format, and no demuxer can open a second file: neither by a protocol nor by a callback.

The input is a live feed, which is read once, each read asking the service for more, or a file on disk without the ID3
tags before its sound. A tag may hold megabytes of pictures, more than a demuxer scans before it gives up on the file.
allm reads no tags, so the input skips them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from typing import NoReturn

import av
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError

from services.audio.sound.messages import FeedChunk, Hungry, Pcm, ToDecoder
from services.audio.sound.mixer import Mixer
from services.sandbox.child import Refusal
from services.worker.channel import BlockingChannel, ChannelClosed

CHUNK_BYTES = 64 * 1024
SILENT_BYTES = 8 * 1024 * 1024  # most bytes without sound; then the feed is refused
HEADER_BYTES = 10  # of an ID3v2 tag, https://id3.org/id3v2.4.0-structure section 3.1
FOOTER = 0x10  # flag of the header
MAX_TAGS = 64  # one after the other; a file of nothing but tags would take a long time to scan


class Feed:
    """A readable file for a demuxer. `before_waiting` is called when all received bytes have been read."""

    def __init__(self, channel: BlockingChannel[ToDecoder], before_waiting: Callable[[], None]) -> None:
        self._channel = channel
        self._before_waiting = before_waiting
        self._ahead = b""  # received and not read yet
        self._ended = False
        self._silent = 0
        self.received = 0  # bytes

    def read(self, count: int) -> bytes:
        """Returns at least one byte and at most `count`; nothing at the end. Waits for the caller's next bytes."""
        if not self._ahead:
            self._ahead = self._next()
        data, self._ahead = self._ahead[:count], self._ahead[count:]
        return data

    def peek(self, count: int) -> bytes:
        """Returns the next `count` bytes and keeps them for later reads; fewer at the end."""
        while len(self._ahead) < count and (data := self._next()):
            self._ahead += data
        return self._ahead[:count]

    def skip(self, count: int) -> None:
        """Skips `count` bytes."""
        while count and (data := self.read(min(count, CHUNK_BYTES))):
            count -= len(data)
            self._silent = 0

    def close(self) -> None:
        """Does nothing: a feed holds no resource."""

    def heard(self) -> None:
        """Records that the bytes so far became sound."""
        self._silent = 0

    def _next(self) -> bytes:
        if self._ended:
            return b""
        if self._silent > SILENT_BYTES:
            raise Refusal(f"{self._silent} consecutive bytes contain no audio")
        self._before_waiting()
        self._channel.send(Hungry(CHUNK_BYTES))
        chunk = self._channel.receive()
        if not isinstance(chunk, FeedChunk):
            raise ChannelClosed(f"a {type(chunk).__name__} came instead of a Chunk")
        self._ended = not chunk.data
        self._silent += len(chunk.data)
        self.received += len(chunk.data)
        return chunk.data


class TaggedFile:
    """A readable file for a demuxer: the file after its tags."""

    def __init__(self, path: str) -> None:
        self._file = io.FileIO(path)
        self._start = 0
        for _ in range(MAX_TAGS):
            self._start += tag_bytes(self._header())
        self._file.seek(self._start)

    def read(self, count: int) -> bytes:
        """Returns at most `count` bytes; nothing at the end."""
        return self._file.read(count) or b""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to a position and returns it; a position before the start is an error of the demuxer's."""
        start = self._start if whence == os.SEEK_SET else 0
        return self._file.seek(start + offset, whence) - self._start

    def tell(self) -> int:
        """Returns the position of the next read."""
        return self._file.tell() - self._start

    def peek(self, count: int) -> bytes:
        """Returns the first `count` bytes; fewer if the file is shorter."""
        return os.pread(self._file.fileno(), count, self._start)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _header(self) -> bytes:
        return os.pread(self._file.fileno(), HEADER_BYTES, self._start)


def tag_bytes(header: bytes) -> int:
    """Returns the length of the ID3v2 tag that starts with these bytes; 0 if there is none."""
    if len(header) < HEADER_BYTES or header[:3] != b"ID3" or max(header[6:10]) > 0x7F:
        return 0
    length = 0
    for byte in header[6:10]:  # seven bits each
        length = length << 7 | byte
    return HEADER_BYTES + length + (HEADER_BYTES if header[5] & FOOTER else 0)


FORMATS = "wav, mp3, m4a, mp4, aac, ogg, opus, flac and webm"  # as callers know them
CONTAINERS = ("wav", "w64", "mp3", "mov", "aac", "ogg", "flac", "matroska")
CODECS = (
    *("mp1", "mp1float", "mp2", "mp2float", "mp3", "mp3float", "aac", "alac", "flac", "vorbis", "opus", "libopus"),
    *("pcm_u8", "pcm_s8", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_s32be", "pcm_f32le"),
    *("pcm_f32be", "pcm_f64le", "pcm_f64be", "pcm_alaw", "pcm_mulaw", "adpcm_ms", "adpcm_ima_wav", "adpcm_ima_qt"),
)
# Containers that state their exact length before decoding; others guess, or keep an early value of the writer's.
EXACT = {"mov", "ogg", "flac", "matroska"}
OPTIONS = {
    "format_whitelist": ",".join(CONTAINERS),
    "codec_whitelist": ",".join(CODECS),
    "protocol_whitelist": "none",  # no such protocol: an empty list would be no whitelist
    "max_probe_packets": "1",  # the header of a wav decides, not a guess from its data
    "max_streams": "32",
}
# A live feed is not delayed to learn more about it than its header says.
LIVE_OPTIONS = OPTIONS | {"probesize": "4096", "analyzeduration": "200000"}
INDEX_LAST = (
    "an mp4 or m4a whose index comes after its audio cannot be decoded while it arrives: "
    "upload it as a file, or write it with its index first (faststart)"
)
IO_BYTES = 64 * 1024

Source = TaggedFile | Feed | io.BufferedReader
SAMPLES = {"s16le": ("s16", 2), "f32le": ("flt", 4)}  # ffmpeg's name, bytes per sample
PIECE_BYTES = 64 * 1024


def decode(file: Source, mixer: Mixer) -> None:
    """Decodes the file's first audio stream into `mixer`. Sound after a damaged part is decoded as far as possible.

    Raises:
        Refusal: the file has no allowed format, holds no sound, or nothing of it can be decoded.
    """
    if isinstance(file, Feed):
        for _ in range(MAX_TAGS):
            file.skip(tag_bytes(file.peek(HEADER_BYTES)))
    head = file.peek(HEADER_BYTES)
    if not head:
        raise Refusal("the file is empty, or ends within its ID3 tag")
    container = _open(file, head)
    with container:
        stream = _audio_stream(container)
        _check_length(container, mixer)
        for frame in _frames(container, stream):
            mixer.add(frame)
            if isinstance(file, Feed):
                file.heard()
    mixer.end()
    if not mixer.samples and isinstance(file, Feed) and head[4:8] == b"ftyp":
        raise Refusal(INDEX_LAST)
    if not mixer.samples:
        raise Refusal(
            f"nothing in the file can be decoded: its {stream.codec_context.name} audio is corrupt or cut off"
        )


def _open(file: Source, head: bytes) -> InputContainer:
    options = LIVE_OPTIONS if isinstance(file, Feed) else OPTIONS
    try:
        return av.open(
            file, "r", container_options=options, metadata_errors="replace", buffer_size=IO_BYTES, io_open=_refuse
        )
    except (FFmpegError, Refusal) as error:
        if isinstance(error, MemoryError):
            raise
        if head[4:8] == b"ftyp" and isinstance(file, Feed):
            raise Refusal(INDEX_LAST) from error
        if head[4:8] == b"ftyp":
            raise Refusal("the mp4 or m4a has no readable index: it is cut off or corrupt") from error
        raise Refusal(
            f"the file is corrupt, cut off, or in an unsupported format. Supported formats: {FORMATS}"
        ) from error


def _refuse(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    """Refuses a demuxer's request to open another file."""
    raise PermissionError("a file may not open other files")


def _audio_stream(container: InputContainer) -> AudioStream:
    """Returns the first audio stream, ready to be decoded; no other is read."""
    if not container.streams.audio:
        raise Refusal(f"the file has no audio: this {_format(container)} has no audio stream")
    chosen = container.streams.audio[0]
    for stream in container.streams:
        if stream is not chosen:
            stream.discard = av.stream.Discard.all
    codec = chosen.codec_context
    if codec is None or codec.name not in CODECS:
        name = f"uses the codec {codec.name}" if codec else "uses an unknown codec"
        raise Refusal(f"the audio in this {_format(container)} {name}, which is not supported")
    codec.thread_count = 1
    codec.options = {"codec_whitelist": ",".join(CODECS)}
    return chosen


def _check_length(container: InputContainer, mixer: Mixer) -> None:
    """Refuses a file immediately if its own stated length is too long."""
    if _format(container) not in EXACT or container.duration is None:
        return
    mixer.declared_seconds = container.duration / av.time_base
    if mixer.declared_seconds > mixer.max_seconds:
        raise mixer.too_long()


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """Yields the frames that can be decoded: skips damaged packets, and ends where the container itself breaks."""
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except (FFmpegError, StopIteration) as error:
            if isinstance(error, MemoryError):
                raise
            return
        try:
            frames = packet.decode()
        except FFmpegError as error:
            if isinstance(error, MemoryError):
                raise
            continue
        yield from frames


def _format(container: InputContainer) -> str:
    return container.format.name.partition(",")[0]


def decode_pcm(file: TaggedFile | Feed, pcm: Pcm, mixer: Mixer) -> None:
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
        raise Refusal(f"the audio ends within a sample, after {len(rest)} of {size} bytes")
    mixer.end()
