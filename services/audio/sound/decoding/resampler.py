"""Converts frames of one shape to 16 kHz mono int16 with ffmpeg's filters, in this thread.

PyAV's AudioResampler does the same with a thread for each core: starting them costs more than decoding a short file.
"""

from __future__ import annotations

from errno import EAGAIN

from av.audio.frame import AudioFrame
from av.error import EOFError as EndOfFrames
from av.error import FFmpegError
from av.filter import Graph

from services.audio.sound.decoding.messages import SAMPLE_RATE

MOST_CHANNELS = 64  # that ffmpeg can mix


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
