"""Sound files: the allowed demuxers and decoders, and the errors for files that they cannot read.

Only formats that hold sound themselves are allowed. A playlist, a script or a reference to another location is
refused by its format, and no demuxer can open a second file: neither by a protocol nor by a callback.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import NoReturn

import av
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError

from services.audio.sound.feed import HEADER_BYTES, MAX_TAGS, Feed, TaggedFile, tag_bytes
from services.audio.sound.messages import Pcm
from services.audio.sound.mixer import Mixer
from services.sandbox.child import Refusal

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
    "an mp4 or m4a whose index comes after its sound cannot be decoded while it comes: "
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
            f"nothing in the file can be decoded: its {stream.codec_context.name} sound is corrupt or cut off"
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
            f"the file is corrupt, cut off, or of a format that is not decoded here. Formats: {FORMATS}"
        ) from error


def _refuse(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    """Refuses a demuxer's request to open another file."""
    raise PermissionError("a file may not open others")


def _audio_stream(container: InputContainer) -> AudioStream:
    """Returns the first audio stream, ready to be decoded; no other is read."""
    if not container.streams.audio:
        raise Refusal(f"the file holds no sound: there is no audio stream in this {_format(container)}")
    chosen = container.streams.audio[0]
    for stream in container.streams:
        if stream is not chosen:
            stream.discard = av.stream.Discard.all
    codec = chosen.codec_context
    if codec is None or codec.name not in CODECS:
        name = f"by the codec {codec.name}" if codec else "by an unknown codec"
        raise Refusal(f"the sound in this {_format(container)} is encoded {name}, which is not decoded here")
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
        raise Refusal(f"the sound ends within a sample: {len(rest)} bytes are left over of {size} for each sample")
    mixer.end()
