"""Converts frames of any rate, layout and sample format to 16 kHz mono int16, in blocks, with ffmpeg's filters.

PyAV's AudioResampler does the same with a thread for each core: starting them costs more than decoding a short file.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EAGAIN

from av.audio.frame import AudioFrame
from av.error import EOFError as EndOfFrames
from av.error import FFmpegError
from av.filter import Graph

from services.audio.sound.messages import BYTES_PER_SAMPLE, SAMPLE_RATE, too_long
from services.sandbox.child import Refusal

MOST_CHANNELS = 64  # that ffmpeg can mix
BLOCK_BYTES = 2 * SAMPLE_RATE * BYTES_PER_SAMPLE  # two seconds: few messages, and a short delay
MIN_RATE, MAX_RATE = 1_000, 768_000  # hertz; no recorded sound is outside


class Resampler:
    """A resampler for the shape of its first frame. Raises FFmpegError if that cannot be mixed into one channel."""

    def __init__(self, frame: AudioFrame) -> None:
        try:
            self._graph = _graph(frame, even=False)
        except FFmpegError:
            if frame.layout.nb_channels > MOST_CHANNELS:
                raise
            self._graph = _graph(frame, even=True)  # the position of such channels is unknown: all count the same

    def resample(self, frame: AudioFrame | None) -> list[AudioFrame]:
        """Returns the frame, mixed and resampled, as far as it is ready; None returns the rest."""
        self._graph.push(frame)
        mixed: list[AudioFrame] = []
        while True:
            try:
                pulled = self._graph.pull()
            except EndOfFrames:
                return mixed
            except FFmpegError as error:
                if error.errno == EAGAIN:
                    return mixed
                raise
            if isinstance(pulled, AudioFrame):
                mixed.append(pulled)


def _graph(frame: AudioFrame, *, even: bool) -> Graph:
    """Builds the filters for such frames. `even`: all channels are mixed alike, whatever their position.

    Raises FFmpegError if that is impossible.
    """
    graph = Graph()
    graph.threads = 1
    source = graph.add(
        "abuffer",
        sample_rate=str(frame.sample_rate),
        sample_fmt=frame.format.name,
        channel_layout=frame.layout.name,
        time_base=f"1/{frame.sample_rate}",
    )
    steps = [source]
    if even:
        channels = "+".join(f"c{number}" for number in range(frame.layout.nb_channels))
        steps.append(graph.add("pan", f"mono|c0<{channels}"))
    steps.append(graph.add("aformat", sample_rates=str(SAMPLE_RATE), sample_fmts="s16", channel_layouts="mono"))
    graph.link_nodes(*steps, graph.add("abuffersink")).configure()
    return graph


class Mixer:
    """The conversion of one file. `emit` gets each block as soon as it is full."""

    def __init__(self, emit: Callable[[bytes], None], max_seconds: float) -> None:
        self._emit = emit
        self.max_seconds = max_seconds
        self._max_samples = int(max_seconds * SAMPLE_RATE)
        self._resampler: Resampler | None = None
        self._shape: tuple[int, str, str] | None = None
        self._pending = bytearray()
        self.samples = 0  # emitted or pending so far
        self.declared_seconds: float | None = None  # length that the file states

    def add(self, frame: AudioFrame) -> None:
        """Adds the next frame. Raises Refusal for sound that cannot be mixed, or that is too long."""
        shape = (frame.sample_rate, frame.layout.name, frame.format.name)
        if shape != self._shape:  # also in the middle of a file, whose parts were joined as they were
            self._drain()
            self._resampler = _resampler(frame)
            self._shape = shape
        frame.pts = None  # ignores the times that a file states for its sound
        self._resample(frame)

    def flush(self) -> None:
        """Emits the pending samples, because nothing more may arrive for a while."""
        if self._pending:
            self._emit(bytes(self._pending))
            self._pending.clear()

    def end(self) -> None:
        """Emits the rest."""
        self._drain()
        self.flush()

    def _drain(self) -> None:
        if self._resampler:
            self._resample(None)
            self._resampler = None

    def _resample(self, frame: AudioFrame | None) -> None:
        for mixed in self._resampler.resample(frame) if self._resampler else []:
            self.samples += mixed.samples
            if self.samples > self._max_samples:
                raise self.too_long()
            self._pending += memoryview(mixed.planes[0])[: mixed.samples * BYTES_PER_SAMPLE]
            while len(self._pending) >= BLOCK_BYTES:
                self._emit(bytes(self._pending[:BLOCK_BYTES]))
                del self._pending[:BLOCK_BYTES]

    def too_long(self) -> Refusal:
        """Returns the refusal of sound over the limit, with both lengths as far as they are known."""
        return Refusal(too_long(self.max_seconds, self.declared_seconds or 0.0))


def _resampler(frame: AudioFrame) -> Resampler:
    if not MIN_RATE <= frame.sample_rate <= MAX_RATE:
        raise Refusal(
            f"the audio has a sample rate of {frame.sample_rate} Hz: {MIN_RATE} to {MAX_RATE} Hz can be decoded"
        )
    try:
        return Resampler(frame)
    except FFmpegError as error:
        raise Refusal(
            f"the audio has {frame.layout.nb_channels} channels, which cannot be mixed into one: send mono or stereo"
        ) from error
