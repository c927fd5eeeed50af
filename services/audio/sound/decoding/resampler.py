"""Frames of one shape made into 16 kHz mono int16 by ffmpeg's filters, in this thread.

PyAV's AudioResampler does the same with a thread for each core, which costs more to start than a short file to decode.
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
    """Made for the shape of a first frame. Raises FFmpegError where that cannot be mixed into one channel."""

    def __init__(self, frame: AudioFrame) -> None:
        try:
            self._graph = _graph(frame, even=False)
        except FFmpegError:
            if frame.layout.nb_channels > MOST_CHANNELS:
                raise
            self._graph = _graph(frame, even=True)  # nobody knows where such channels belong: each counts the same

    def resample(self, frame: AudioFrame | None) -> list[AudioFrame]:
        """The frame, mixed and resampled, as far as it is ready; None gives the rest."""
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
    """The way from such frames to plain sound. `even`: all channels are mixed alike, wherever they belong.

    Raises FFmpegError where that cannot be.
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
