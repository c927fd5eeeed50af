"""Word times compared with the reference implementation, on random alignments and on recorded speech."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.audio.engine.messages import Word
from services.audio.engine.runtime import Aligned
from services.audio.engine.words import Utterance, time_words
from tests.audio.engine.recordings import samples_of, silence
from tests.late import late
from tests.speech import librivox
from tests.whisper_weights import tiny_en_pt

whisper = late("whisper")

EOT = 1000
SPELLINGS = [" the", " a", "un", " word", ".", ",", "?", " (", ")", ' "', "'s", " -", " Mr", "。", " end", "!", " ¿"]


def aligned(tokens: int, rng: np.random.Generator) -> Aligned:
    """Generates a path through the tokens and the end of text: mostly short steps, and a few long pauses."""
    rows, columns, column = [], [], int(rng.integers(0, 100))
    for token in range(tokens + 1):
        for _ in range(1 + int(rng.choice([0, 3, 10, 20, 200], p=[0.1, 0.3, 0.3, 0.2, 0.1]))):
            rows.append(token)
            columns.append(column)
            column += int(rng.integers(0, 2))
    probabilities = rng.random(tokens).astype(np.float32)
    return Aligned(np.array(rows), np.array(columns), probabilities)


def split(tokens: int, rng: np.random.Generator) -> tuple[list[str], list[list[int]]]:
    words, parts, left = [], [], tokens
    while left:
        count = min(left, int(rng.integers(1, 4)))
        words.append(str(rng.choice(SPELLINGS)))
        parts.append([1] * count)
        left -= count
    return words, parts


def found(words: list[str], parts: list[list[int]], path: Aligned) -> list[Any]:
    """Returns the result of the reference's `find_alignment` for the path."""
    jumps = np.pad(np.diff(path.text_indices), (1, 0), constant_values=1).astype(bool)
    times = path.time_indices[jumps] / whisper.audio.TOKENS_PER_SECOND
    ends = np.cumsum([len(part) for part in parts])
    return [
        whisper.timing.WordTiming(
            word, part, times[end - len(part)], times[end], np.mean(path.probabilities[end - len(part) : end].tolist())
        )
        for word, part, end in zip(words, parts, ends, strict=True)
    ]


def check(segments: list[dict[str, Any]], utterances: list[Utterance]) -> None:
    for segment, utterance in zip(segments, utterances, strict=True):
        assert (utterance.start, utterance.end) == pytest.approx((segment["start"], segment["end"]), abs=1e-9)
        assert [word.word for word in utterance.words] == [word["word"] for word in segment["words"]]
        for word, theirs in zip(utterance.words, segment["words"], strict=True):
            expected = (theirs["start"], theirs["end"], theirs["probability"])
            assert (word.start, word.end, word.probability) == pytest.approx(expected, abs=1e-9)


def test_random_alignments_become_the_reference_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    corrected = 0
    for _ in range(500):
        counts = rng.integers(0, 12, int(rng.integers(1, 5))).tolist()
        if not sum(counts):
            continue
        words, parts = split(sum(counts), rng)
        path = aligned(sum(counts), rng)
        seek = int(rng.integers(0, 3)) * 1234
        borders = (np.sort(rng.integers(0, 1500, 2 * len(counts))) / 50 + seek / 100).tolist()
        segments = [
            {"seek": seek, "tokens": [1] * count, "start": borders[2 * number], "end": borders[2 * number + 1]}
            for number, count in enumerate(counts)
        ]
        utterances = [Utterance(segment["tokens"], segment["start"], segment["end"]) for segment in segments]
        spoken_until = float(rng.choice([0, seek / 100, seek / 100 + 5]))
        alignment = found(words, parts, path)
        naive = [(word.start, word.end) for word in alignment]
        monkeypatch.setattr(whisper.timing, "find_alignment", lambda *_, result=alignment: result)
        whisper.timing.add_word_timestamps(
            segments=segments,
            model=None,
            tokenizer=SimpleNamespace(eot=EOT),
            mel=None,
            num_frames=3000,
            last_speech_timestamp=spoken_until,
        )
        until = time_words(utterances, words, parts, path, seek / 100, spoken_until)
        check(segments, utterances)
        spoken = [segment["end"] for segment in segments if segment["words"]]
        assert until == pytest.approx(spoken[-1])
        corrected += naive != [(word.start, word.end) for word in alignment]
    assert corrected > 50, "the corrections came up"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # whisper leaves a file to the GC
def test_real_speech_has_the_reference_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference's path and split of each window give the reference's words."""
    calls: list[SimpleNamespace] = []
    dtw, add = whisper.timing.dtw, whisper.timing.add_word_timestamps

    def seen_dtw(costs: Any) -> Any:
        calls[-1].path = dtw(costs)
        return calls[-1].path

    def seen_add(
        *, segments: list[dict[str, Any]], tokenizer: Any, last_speech_timestamp: float, **others: Any
    ) -> None:
        call = SimpleNamespace(before=copy.deepcopy(segments), path=None, spoken_until=last_speech_timestamp)
        calls.append(call)
        add(segments=segments, tokenizer=tokenizer, last_speech_timestamp=last_speech_timestamp, **others)
        call.after = copy.deepcopy(segments)
        call.texts = [[token for token in segment["tokens"] if token < tokenizer.eot] for segment in segments]
        call.words, call.parts = tokenizer.split_to_word_tokens([token for text in call.texts for token in text])

    monkeypatch.setattr(whisper.timing, "dtw", seen_dtw)
    # The package attribute of this name is the function.
    monkeypatch.setattr(sys.modules["whisper.transcribe"], "add_word_timestamps", seen_add)
    model = whisper.load_model(str(tiny_en_pt()), device="cpu")
    sound = np.concatenate([samples_of(librivox()[0]), silence(3), samples_of(librivox()[1])])
    model.transcribe(sound, word_timestamps=True, fp16=False, language="en", temperature=0.0)
    calls = [call for call in calls if call.path is not None]
    assert sum(len(call.words) for call in calls) > 25
    for call in calls:
        # The mean over a word is tested above: here all tokens of a word have its probability.
        path = Aligned(*call.path, np.zeros(sum(map(len, call.texts)), dtype=np.float32))
        utterances = [
            Utterance(text, segment["start"], segment["end"])
            for text, segment in zip(call.texts, call.before, strict=True)
        ]
        time_words(utterances, call.words, call.parts, path, call.before[0]["seek"] / 100, call.spoken_until)
        for segment in call.after:
            for word in segment["words"]:
                word["probability"] = 0.0
        check(call.after, utterances)


def test_a_word_is_as_probable_as_its_tokens_on_average() -> None:
    path = Aligned(np.array([0, 1, 2, 3]), np.array([0, 10, 20, 30]), np.array([0.5, 1.0, 0.25], dtype=np.float32))
    utterance = Utterance([1, 2, 3], 0.0, 1.0)
    time_words([utterance], [" one", " two"], [[1, 2], [3]], path)
    assert utterance.words == [Word(" one", 0.0, 0.4, 0.75), Word(" two", 0.4, 0.6, 0.25)]
    assert (utterance.start, utterance.end) == (0.0, 0.6)
