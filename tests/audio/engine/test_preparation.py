"""The split of audio into windows: refusals, limits on held audio, and turns."""

from __future__ import annotations

import queue

import numpy as np

from services.audio.engine.mel import Closed, RequestOpened, Seek, SpectrogramChunk, Taken
from services.audio.engine.messages import Consumed, Decoding, Sound, Submit
from services.audio.engine.preparation import BACKLOG_BYTES, HELD_SAMPLES, Preparation
from services.audio.engine.window import Samples
from services.worker.messages import Cancel, RequestRefused, Stop
from tests.audio.engine.recordings import announcement, novel, silence
from tests.audio.engine.scripted_whisper import Scripted

WHOLE = Decoding(language="en", vad=None)
SPEECH = Decoding(language="en")
LIVE = Decoding(language="en", live=True)
SECOND = 16_000


class PreparationSession:
    """A preparation that is stepped by hand."""

    def __init__(self, batch: int = 4) -> None:
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.handed: list[object] = []
        self.sent: list[object] = []
        self.preparation = Preparation(Scripted(batch=batch), self.inbox, self.handed.append, self.sent.append)

    def put(self, *messages: object) -> None:
        """Delivers messages and prepares everything that is ready."""
        for message in messages:
            self.inbox.put(message)
        while not self.inbox.empty() or any(map(self.preparation._can_process, self.preparation._feeds.values())):
            assert self.preparation.turn()

    def chunks(self, request: int = 1) -> list[SpectrogramChunk]:
        return [
            one
            for one in self.handed
            if isinstance(one, SpectrogramChunk) and one.request == request and not one.partial
        ]

    def partials(self) -> list[SpectrogramChunk]:
        return [one for one in self.handed if isinstance(one, SpectrogramChunk) and one.partial]

    def closed(self) -> list[Closed]:
        return [one for one in self.handed if isinstance(one, Closed)]

    def refused(self) -> list[RequestRefused]:
        return [one for one in self.sent if isinstance(one, RequestRefused)]

    @property
    def consumed(self) -> int:
        return max((one.samples for one in self.sent if isinstance(one, Consumed)), default=0)


def pcm(samples: Samples) -> bytes:
    return np.round(samples * 32767).astype("<i2").tobytes()


def test_a_request_is_opened_cut_and_closed() -> None:
    session = PreparationSession()
    session.put(Submit(1, "a", SPEECH), Sound(1, pcm(novel()), last=True))
    assert session.handed[0] == RequestOpened(1, "a", SPEECH, [])
    (one,) = session.chunks()
    assert one.mel.shape == (80, 3000)
    assert one.frames == len(one.mel[0].nonzero()[0])
    assert session.closed() == [Closed(1, len(novel()))]
    assert session.consumed == len(novel())
    assert len(one.window.samples) == len(one.window.before) == len(one.window.after) == 0


def test_message_boundaries_do_not_affect_sound() -> None:
    whole, parts = PreparationSession(), PreparationSession()
    data = pcm(novel())
    whole.put(Submit(1, "a", WHOLE), Sound(1, data, last=True))
    pieces = [Sound(1, data[at : at + 9999]) for at in range(0, len(data), 9999)]  # odd: splits samples
    parts.put(Submit(1, "a", WHOLE), *pieces, Sound(1, b"", last=True))
    assert np.array_equal(whole.chunks()[0].mel, parts.chunks()[0].mel)


def test_half_a_sample_at_the_end_is_dropped() -> None:
    session = PreparationSession()
    session.put(Submit(1, "a", WHOLE), Sound(1, bytes(2 * SECOND) + b"x", last=True))
    assert session.chunks()[0].frames == 100
    session.put(Seek(1, 100))
    assert session.closed() == [Closed(1, SECOND)]


def test_half_a_sample_alone_is_no_sound() -> None:
    session = PreparationSession()
    session.put(Submit(1, "a", WHOLE), Sound(1, b"x"), Sound(1, b"", last=True))
    assert session.closed() == [Closed(1, 0)]


def test_sound_after_the_end_or_for_an_unknown_request_is_dropped() -> None:
    session = PreparationSession()
    sound = pcm(novel())
    session.put(Sound(7, sound), Submit(1, "a", WHOLE), Sound(1, sound[:64000], last=True), Sound(1, sound, last=True))
    session.put(Seek(1, 200), Sound(1, sound, last=True))
    session.put(Cancel(1), Cancel(7))
    assert session.closed() == [Closed(1, 32000)]


def test_no_sound_at_all_is_closed_at_once() -> None:
    for decoding in (WHOLE, SPEECH):
        session = PreparationSession()
        session.put(Submit(1, "a", decoding), Sound(1, b"", last=True))
        assert session.closed() == [Closed(1, 0)]
        assert not session.chunks()


def test_silence_and_noise_are_no_windows() -> None:
    session = PreparationSession()
    noise = np.random.default_rng(1).normal(0, 0.05, 20 * SECOND).astype(np.float32)
    session.put(Submit(1, "a", SPEECH), Sound(1, pcm(silence(20))), Sound(1, pcm(noise), last=True))
    assert not session.chunks()
    assert session.closed() == [Closed(1, 40 * SECOND)]
    assert session.consumed == 40 * SECOND


def test_unsupported_features_are_refused_by_name() -> None:
    session = PreparationSession()
    session.put(Submit(1, "a", Decoding(language="tlh")))
    session.preparation._runtime.ready = session.preparation._runtime.ready.__class__(
        languages=["en"], multilingual=False, batch_windows=4
    )
    session.put(Submit(2, "a", Decoding(task="translate")), Submit(3, "a", Decoding(language="de")))
    session.put(Submit(4, "a", Decoding(temperatures=())))
    assert [(one.request, one.code, one.param) for one in session.refused()] == [
        (1, "INVALID_REQUEST", "language"),
        (2, "INVALID_REQUEST", "model"),
        (3, "INVALID_REQUEST", "language"),
        (4, "INVALID_REQUEST", "temperature"),
    ]
    assert "tlh" in session.refused()[0].message


def test_a_long_file_is_looked_at_only_as_fast_as_its_windows_are_taken() -> None:
    session = PreparationSession(batch=2)
    session.put(Submit(1, "a", SPEECH))
    sound = pcm(announcement())
    for _ in range(3):
        session.put(Sound(1, sound))
    ahead = len(session.chunks())
    assert ahead <= 3  # one block may complete two
    assert session.consumed < 2 * len(announcement())
    for _ in range(100):
        if session.closed():
            break
        session.put(Taken(1), Sound(1, b"", last=True))
    assert session.closed() == [Closed(1, 3 * len(announcement()))]
    assert session.consumed == 3 * len(announcement())
    assert all(one.frames <= 3000 for one in session.chunks())


def test_without_voice_detection_a_window_waits_for_where_it_begins() -> None:
    session = PreparationSession()
    session.put(Submit(1, "a", WHOLE), Sound(1, pcm(announcement()), last=True))
    assert len(session.chunks()) == 1
    session.put(Taken(1))
    assert len(session.chunks()) == 1
    session.put(Seek(1, 2500))
    assert session.chunks()[1].window.seek == 2500
    assert [one.number for one in session.chunks()] == [0, 1]


def test_without_voice_detection_no_more_than_a_few_windows_of_sound_are_held() -> None:
    session = PreparationSession()
    session.put(Submit(1, "a", WHOLE), *[Sound(1, bytes(2 * SECOND * 60)) for _ in range(5)])
    feed = session.preparation._feeds[1]
    assert feed.planner.fed <= HELD_SAMPLES + 8 * SECOND


def test_a_short_clip_does_not_wait_for_a_long_file() -> None:
    session = PreparationSession(batch=32)
    for message in (
        Submit(1, "a", SPEECH),
        Sound(1, pcm(np.tile(announcement(), 3))),
        Submit(2, "b", SPEECH),
        Sound(2, pcm(novel()[: 5 * SECOND]), last=True),
    ):
        session.inbox.put(message)
    turns = 0
    while not session.closed():
        session.preparation.turn()
        turns += 1
    assert session.closed()[0].request == 2
    assert turns <= 3


def test_too_much_sound_at_once_is_refused() -> None:
    session = PreparationSession(batch=1)
    session.put(Submit(1, "a", WHOLE), *[Sound(1, bytes(BACKLOG_BYTES // 4)) for _ in range(6)])
    assert [(one.request, one.code) for one in session.refused()] == [(1, "INTERNAL")]
    assert Cancel(1) in session.handed


def test_a_cancelled_request_is_forgotten() -> None:
    session = PreparationSession()
    session.put(Submit(1, "a", SPEECH), Sound(1, pcm(novel())), Cancel(1))
    assert session.handed[-1] == Cancel(1)
    assert not session.preparation._feeds
    session.put(Taken(1), Seek(1, 5), Sound(1, b"", last=True))
    assert not session.closed()


def test_live_speech_has_a_partial_for_each_second_while_the_last_one_is_taken() -> None:
    session = PreparationSession()
    session.put(Submit(1, "a", LIVE))
    sound = novel()[: 6 * SECOND]
    step = SECOND // 5
    for at in range(0, len(sound), step):
        session.put(Sound(1, pcm(sound[at : at + step])))
        if session.partials() and at == 3 * SECOND:
            session.put(Taken(1, partial=True))
    assert len(session.partials()) == 2
    first, second = session.partials()
    assert first.number == second.number == 0
    assert first.frames < second.frames


def test_a_pause_ends_a_live_window() -> None:
    session = PreparationSession()
    session.put(Submit(1, "a", LIVE), Sound(1, pcm(novel()[: 7 * SECOND])))
    session.put(Sound(1, pcm(silence(1.5))))
    assert len(session.chunks()) == 1
    assert not session.closed()


def test_stop_is_handed_on() -> None:
    session = PreparationSession()
    session.inbox.put(Stop())
    assert not session.preparation.turn()
    assert isinstance(session.handed[-1], Stop)
