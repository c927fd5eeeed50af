"""Windows cut from audio, by speech and as in the reference: no audio is lost, and the feed sizes do not matter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from services.audio.engine.messages import VadOptions
from services.audio.engine.vad import FRAME, SpeechMeter
from services.audio.engine.window import HOP, WINDOW_SAMPLES, Piece, Samples, Window
from services.audio.engine.window_planner import SpeechWindowPlanner, WholeWindowPlanner
from tests.audio.engine.recordings import announcement, novel, silence

SECOND = 16000
OPTIONS = VadOptions(silence_ms=200, padding_ms=300)
ALL_OPTIONS = (
    OPTIONS,
    VadOptions(silence_ms=0, padding_ms=0),
    VadOptions(silence_ms=3000, padding_ms=400),
    VadOptions(silence_ms=100, padding_ms=5000),
    VadOptions(silence_ms=0, padding_ms=40_000),
)


class Loudness:
    """A fake speech meter that treats loud audio as speech."""

    def __init__(self) -> None:
        self._rest = np.zeros(0, dtype=np.float32)

    def feed(self, samples: Samples) -> Samples:
        sound = np.concatenate([self._rest, samples])
        frames = len(sound) // FRAME
        self._rest = sound[frames * FRAME :]
        return (np.abs(sound[: frames * FRAME]).reshape(frames, FRAME).max(axis=1) > 0.1).astype(np.float32)

    def end(self) -> Samples:
        return self.feed(np.zeros(-len(self._rest) % FRAME, dtype=np.float32))


def loud(seconds: float) -> Samples:
    return np.full(int(seconds * SECOND), 0.5, dtype=np.float32)


def quiet(seconds: float) -> Samples:
    return np.zeros(int(seconds * SECOND), dtype=np.float32)


def numbered(sound: Samples) -> Samples:
    """Makes samples distinguishable over several minutes without changing how loud they are."""
    return sound + np.arange(len(sound), dtype=np.float32) * np.float32(2**-25)


def taken(windows: SpeechWindowPlanner | WholeWindowPlanner) -> Iterator[Window]:
    while window := windows.ready():
        yield window
        if isinstance(windows, WholeWindowPlanner):
            windows.seek(window.seek + window.frames)


def windows_of(windows: SpeechWindowPlanner | WholeWindowPlanner, sound: Samples, cuts: list[int]) -> list[Window]:
    found = []
    for part in np.split(sound, cuts):
        windows.feed(part)
        found += list(taken(windows))
        assert windows.consumed <= windows.fed
    windows.end()
    found += list(taken(windows))
    assert windows.done
    return found


def same(first: list[Window], second: list[Window]) -> bool:
    return [window.pieces for window in first] == [window.pieces for window in second] and all(
        np.array_equal(one.samples, other.samples) for one, other in zip(first, second, strict=True)
    )


def random_sound(rng: np.random.Generator) -> Samples:
    parts = []
    for _ in range(int(rng.integers(1, 14))):
        parts += [quiet(float(rng.exponential(3))), loud(float(rng.exponential(rng.choice([0.1, 3, 25]))))]
    return numbered(np.concatenate([*parts, quiet(float(rng.exponential(0.5)))]))


def check(found: list[Window], sound: Samples) -> None:
    """Checks the properties that hold for windows of any audio."""
    covered = np.zeros(len(sound), dtype=bool)
    until = 0
    for window in found:
        assert 0 < len(window.samples) <= WINDOW_SAMPLES
        inside = 0
        for piece in window.pieces:
            assert piece.window == inside, "no holes in a window"
            assert piece.file >= until, "pieces rise and do not overlap"
            inside, until = inside + piece.length, piece.file + piece.length
            cut = window.samples[piece.window : piece.window + piece.length]
            np.testing.assert_array_equal(cut, sound[piece.file : until])
            covered[piece.file : until] = True
        assert inside == len(window.samples)
        times = np.linspace(0, 31, 100)
        for end in (False, True):
            mapped = [window.at(time, end) for time in times]
            assert mapped == sorted(mapped)
            assert window.start <= mapped[0] <= mapped[-1] <= window.end
    assert covered[sound >= 0.5].all(), "all speech is in a window"


def test_random_sounds_lose_no_speech_and_do_not_depend_on_how_they_are_fed() -> None:
    rng = np.random.default_rng(8)
    many = 0
    for turn in range(40):
        sound = random_sound(rng)
        options = ALL_OPTIONS[turn % len(ALL_OPTIONS)]
        found = windows_of(SpeechWindowPlanner(options, Loudness()), sound, [])
        check(found, sound)
        many += len(found) > 1
        cuts = np.sort(rng.integers(0, len(sound), int(rng.integers(1, 200)))).tolist()
        assert same(found, windows_of(SpeechWindowPlanner(options, Loudness()), sound, cuts))
    assert many > 10


def test_live_windows_lose_no_speech_either() -> None:
    rng = np.random.default_rng(9)
    for turn in range(20):
        sound = random_sound(rng)
        options = ALL_OPTIONS[turn % len(ALL_OPTIONS)]
        cuts = list(range(FRAME, len(sound), 777))
        found = windows_of(SpeechWindowPlanner(options, Loudness(), live=True), sound, cuts)
        check(found, sound)
        assert same(found, windows_of(SpeechWindowPlanner(options, Loudness(), live=True), sound, []))


def test_real_speech_is_cut_alike_however_it_is_fed() -> None:
    sound = np.concatenate([silence(3), announcement(), silence(8), novel(), silence(2)])
    found = windows_of(SpeechWindowPlanner(OPTIONS, SpeechMeter()), sound, [])
    assert len(found) in (4, 5)
    assert sum(window.seconds for window in found) < len(sound) / SECOND - 8
    parts = list(range(1600, len(sound), 1600))
    assert same(found, windows_of(SpeechWindowPlanner(OPTIONS, SpeechMeter()), sound, parts))


def test_silence_is_no_window_and_holds_no_memory() -> None:
    windows = SpeechWindowPlanner(OPTIONS, Loudness())
    for _ in range(7200):
        windows.feed(quiet(1))
        assert windows.ready() is None
        assert windows.open() is None
        assert windows.fed - windows.consumed < SECOND
    windows.end()
    assert windows.ready() is None
    assert windows.done


@pytest.mark.parametrize("pause", [0.0, 20.0])
def test_hours_of_speech_hold_little_memory(pause: float) -> None:
    """Speech without pauses, and with pauses so long that a window spans many minutes of the file."""
    windows = SpeechWindowPlanner(OPTIONS, Loudness())
    part = np.concatenate([loud(1), quiet(pause)])
    count = 0
    for _ in range(3600 if not pause else 300):
        windows.feed(part)
        count += len(list(taken(windows)))
        assert windows.fed - windows.consumed <= WINDOW_SAMPLES + len(part) + SECOND
        assert windows._sound._buffer.nbytes <= 4 * 4 * WINDOW_SAMPLES
    assert count > (100 if not pause else 10)


def test_a_window_takes_stretches_until_the_next_does_not_fit() -> None:
    sound = np.concatenate([loud(9), quiet(2)] * 4)
    windows = SpeechWindowPlanner(OPTIONS, Loudness())
    windows.feed(sound[: 34 * SECOND])
    assert windows.ready() is None
    windows.feed(sound[34 * SECOND :])
    first = windows.ready()
    assert first is not None
    assert len(first.pieces) == 3
    assert first.seconds == pytest.approx(28.5, abs=0.1)  # 0.3 s around each stretch, except before the first
    assert not first.last
    assert windows.ready() is None
    windows.end()
    second = windows.ready()
    assert second is not None
    assert second.pieces == (Piece(0, second.pieces[0].file, second.pieces[0].length),)
    assert second.start == pytest.approx(32.7, abs=0.05)
    assert windows.done


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    sound = loud(70)
    sound[25 * SECOND : 25 * SECOND + 3200] = 0.2  # still counts as speech
    found = windows_of(SpeechWindowPlanner(OPTIONS, Loudness()), sound, [])
    assert [window.start for window in found][1:2] == [pytest.approx(25.1, abs=0.1)]
    assert len(found) == 3
    assert sum(len(window.samples) for window in found) == len(sound)
    assert found[-1].last


def test_no_speech_for_long_ends_a_window_at_once() -> None:
    windows = SpeechWindowPlanner(OPTIONS, Loudness())
    windows.feed(np.concatenate([loud(2), quiet(29.9)]))
    assert windows.ready() is None
    windows.feed(quiet(0.2))
    assert windows.ready() is not None
    assert not windows.done


def test_a_live_speaker_s_pause_ends_a_window() -> None:
    windows = SpeechWindowPlanner(OPTIONS, Loudness(), live=True)
    windows.feed(np.concatenate([quiet(5), loud(2)]))
    spoken = windows.open()
    assert spoken is not None
    assert (spoken.start, spoken.end) == pytest.approx((4.7, 7.0), abs=0.05)
    windows.feed(quiet(0.5))
    assert windows.ready() is None
    assert windows.open() is not None
    windows.feed(quiet(0.2))
    window = windows.ready()
    assert window is not None
    assert (window.start, window.end) == pytest.approx((4.7, 7.3), abs=0.05)
    assert windows.open() is None
    windows.feed(loud(0.5))
    again = windows.open()
    assert again is not None
    assert again.start == pytest.approx(7.4, abs=0.05)


def test_reading_open_speech_changes_nothing() -> None:
    sound = np.concatenate([loud(3), quiet(0.3), loud(3), quiet(1), loud(2)])
    expected = windows_of(SpeechWindowPlanner(OPTIONS, Loudness(), live=True), sound, [])
    windows = SpeechWindowPlanner(OPTIONS, Loudness(), live=True)
    found, shown = [], 0.0
    for start in range(0, len(sound), 1000):
        windows.feed(sound[start : start + 1000])
        spoken = windows.open()
        shown = max(shown, spoken.seconds if spoken else 0)
        found += list(taken(windows))
    windows.end()
    found += list(taken(windows))
    assert same(found, expected)
    assert shown > 6


@pytest.mark.parametrize("windows", [WholeWindowPlanner(), SpeechWindowPlanner(OPTIONS, Loudness())])
def test_nothing_is_fed_after_the_end(windows: SpeechWindowPlanner | WholeWindowPlanner) -> None:
    windows.end()
    windows.end()
    assert windows.ready() is None
    assert windows.done
    with pytest.raises(ValueError, match="ended"):
        windows.feed(quiet(1))


def test_whole_windows_move_by_the_given_columns() -> None:
    sound = numbered(loud(70.005))
    windows = WholeWindowPlanner()
    windows.feed(sound[: 30 * SECOND])
    assert windows.ready() is None, "the spectrogram's last columns need a little more"
    windows.feed(sound[30 * SECOND :])
    seeks = []
    for seek in (2900, 3350, 5800):
        window = windows.ready()
        assert window is not None
        seeks.append(window.seek)
        np.testing.assert_array_equal(window.samples, sound[window.seek * HOP :][:WINDOW_SAMPLES])
        assert windows.ready() is None, "it waits to be told"
        assert not windows.done
        windows.seek(seek)
        assert windows.fed - windows.consumed <= len(sound) - seek * HOP + 200
    assert seeks == [0, 2900, 3350]
    assert windows.ready() is None
    windows.end()
    window = windows.ready()
    assert window is not None
    assert (window.start, window.frames, window.last) == (58.0, 1200, True)
    windows.seek(7000)
    assert windows.done, "less than a column is left"


@pytest.mark.parametrize("frame", [0, -5, 501])
def test_whole_windows_only_move_on_and_not_too_far(frame: int) -> None:
    windows = WholeWindowPlanner()
    windows.feed(loud(5))
    windows.end()
    with pytest.raises(ValueError, match="not in the window"):
        windows.seek(1)  # no window has been taken yet
    assert windows.ready() is not None
    with pytest.raises(ValueError, match="not in the window"):
        windows.seek(frame)


def test_whole_windows_show_what_came_since() -> None:
    windows = WholeWindowPlanner()
    assert windows.open() is None
    windows.feed(loud(2))
    spoken = windows.open()
    assert spoken is not None
    assert spoken.seconds == 2


def test_random_feeds_of_whole_windows() -> None:
    sound = numbered(loud(95))
    expected = windows_of(WholeWindowPlanner(), sound, [])
    assert [window.seconds for window in expected] == [30, 30, 30, 5]
    cuts = np.sort(np.random.default_rng(1).integers(0, len(sound), 90)).tolist()
    assert same(expected, windows_of(WholeWindowPlanner(), sound, cuts))
