"""The `faster_whisper` runtime, compared with the library's own use of CTranslate2 and with the `whisper` runtime."""

from __future__ import annotations

import dataclasses
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ctranslate2
import numpy as np
import pytest
from faster_whisper.tokenizer import Tokenizer
from faster_whisper.transcribe import TranscriptionOptions, WhisperModel

from services.audio.engine.runtime import TOKEN_SECONDS, Decoded, padded_parts
from services.audio.engine.runtimes.faster_whisper import ALIGNED_TOKENS, FasterWhisper, _joined
from services.worker.messages import EngineError
from tests.audio.engine.runtimes.spoken import LOGPROB, encoded, frames, mels, options, same, spoken, step, understood
from tests.whisper_weights import tiny_en_ct2

if TYPE_CHECKING:
    from services.audio.engine.runtimes.whisper import OpenAIWhisper


START = [50257]  # token of tiny.en: the start of the transcript
searches = pytest.mark.parametrize("beams", [1, 5], ids=["greedy", "beams"])


@pytest.fixture(scope="module")
def library(faster_whisper: FasterWhisper) -> WhisperModel:
    return WhisperModel(str(tiny_en_ct2()), device="cpu", compute_type="float32", cpu_threads=1)


@pytest.fixture(scope="module")
def library_windows(library: WhisperModel) -> list[Any]:
    return [library.encode(mel) for mel in mels()]


def decode_with(library: WhisperModel, windows: Any, beams: int) -> Decoded:
    """Decodes one encoded window with the faster-whisper library."""
    known = {field.name: None for field in dataclasses.fields(TranscriptionOptions)}
    known |= {"beam_size": beams, "patience": 1, "length_penalty": 1, "repetition_penalty": 1, "best_of": 5}
    known |= {"no_repeat_ngram_size": 0, "max_initial_timestamp": 1.0, "suppress_blank": True, "temperatures": [0.0]}
    tokenizer = Tokenizer(library.hf_tokenizer, multilingual=False)
    suppressed = [*tokenizer.non_speech_tokens, tokenizer.sot, tokenizer.sot_prev, tokenizer.sot_lm]
    known["suppress_tokens"] = [*suppressed, tokenizer.transcribe, tokenizer.translate, tokenizer.no_speech]
    result, avg_logprob, _, _ = library.generate_with_fallback(windows, START, tokenizer, TranscriptionOptions(**known))
    return Decoded(result.sequences_ids[0], avg_logprob, result.no_speech_prob)


@searches
def test_a_batch_is_decoded_as_the_library_decodes_one_by_one(
    faster_whisper: FasterWhisper, library: WhisperModel, library_windows: list[Any], beams: int
) -> None:
    found = faster_whisper.decode(encoded(faster_whisper), [START] * 3, step(beam_size=beams))
    for row in range(3):
        wanted = decode_with(library, library_windows[row], beams)
        assert same(found[row], wanted), f"row {row}: {found[row]} is not {wanted}"


def test_both_runtimes_find_the_same(faster_whisper: FasterWhisper, openai_whisper: OpenAIWhisper) -> None:
    found = faster_whisper.decode(encoded(faster_whisper), [START] * 3, step())
    wanted = openai_whisper.decode(encoded(openai_whisper), [START] * 3, step())
    assert all(same(one, other) for one, other in zip(found, wanted, strict=True))


@searches
def test_prompts_of_any_shape_and_windows_of_any_batch_may_come_together(
    faster_whisper: FasterWhisper, beams: int
) -> None:
    vocabulary = faster_whisper.vocabulary
    windows = faster_whisper.encode(mels()[:2])
    others = faster_whisper.encode(mels()[2:])
    chosen = [windows[1], others[0], windows[0]]
    prompts = [START, [vocabulary.sot_prev, *vocabulary.encode(" Jane Austen"), *START], START]
    together = faster_whisper.decode(chosen, prompts, step(beam_size=beams))
    for row, (window, prompt) in enumerate(zip(chosen, prompts, strict=True)):
        assert same(together[row], faster_whisper.decode([window], [prompt], step(beam_size=beams))[0])


def test_shorter_windows_share_calls_with_whole_ones(faster_whisper: FasterWhisper) -> None:
    whole = encoded(faster_whisper)[:1]
    short = faster_whisper.encode(np.ascontiguousarray(mels()[2:3, :, : frames()[2] // 2 * 2]))
    assert short[0].length == frames()[2] // 2
    mixed = faster_whisper.decode([*whole, *short], [START] * 2, step())
    assert same(mixed[1], faster_whisper.decode(short, [START], step())[0])
    text = faster_whisper.vocabulary.encode(" Unless to be rather cold")
    aligned = faster_whisper.align([*whole, *short], [START] * 2, [text] * 2, [frames()[0], frames()[2]])
    assert aligned[1].time_indices[-1] < frames()[2] // 2


def test_no_more_tokens_than_allowed(faster_whisper: FasterWhisper) -> None:
    vocabulary = faster_whisper.vocabulary
    windows = encoded(faster_whisper)[:2]
    before = [vocabulary.sot_prev, *vocabulary.encode(" and so on") * 4, *START]
    for prompt in (START, before, [*START, vocabulary.no_timestamps]):
        for beams in (1, 3):
            found = faster_whisper.decode(windows, [prompt] * 2, step(beam_size=beams, max_tokens=4))
            assert [len(one.tokens) for one in found] == [4, 4]


def test_samples_keep_to_the_rules(faster_whisper: FasterWhisper) -> None:
    windows = encoded(faster_whisper)[:2]
    for decoded in faster_whisper.decode(windows, [START] * 2, step(temperature=1.0)):
        assert not set(decoded.tokens) & set(faster_whisper.vocabulary.suppressed)
        assert decoded.tokens[0] >= faster_whisper.vocabulary.timestamp_begin
        assert decoded.avg_logprob < 0


def test_words_are_where_the_library_and_the_other_runtime_find_them(
    faster_whisper: FasterWhisper,
    openai_whisper: OpenAIWhisper,
    library: WhisperModel,
    library_windows: list[Any],
) -> None:
    vocabulary = faster_whisper.vocabulary
    windows = encoded(faster_whisper)
    decoded = faster_whisper.decode(windows, [START] * 3, step())
    texts = [[token for token in one.tokens if token < vocabulary.eot] for one in decoded]
    aligned = faster_whisper.align(windows, [START] * 3, texts, frames())
    others = openai_whisper.align(encoded(openai_whisper), [START] * 3, texts, frames())
    for one, other in zip(aligned, others, strict=True):
        assert _moments(one) == pytest.approx(_moments(other), abs=0.04)
        assert one.probabilities == pytest.approx(other.probabilities, abs=LOGPROB)
    tokenizer = Tokenizer(library.hf_tokenizer, multilingual=False)
    for row in range(3):
        (words,) = library.find_alignment(tokenizer, [texts[row]], library_windows[row], [frames()[row]])
        found, groups = vocabulary.split_words([*texts[row], vocabulary.eot], "en")
        assert [word["word"] for word in words] == found[:-1]
        starts = np.cumsum([0, *(len(group) for group in groups[:-1])])[:-1]
        assert [_moments(aligned[row])[at] for at in starts] == pytest.approx([word["start"] for word in words])


def test_words_of_many_windows_are_aligned_in_parts_within_the_estimated_memory(
    faster_whisper: FasterWhisper, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = encoded(faster_whisper)
    text = faster_whisper.vocabulary.encode(" Unless to be rather cold")
    texts = [text, text * 13, text[:3]]
    assert 3 * len(texts[1]) > ALIGNED_TOKENS >= 2 * len(text)
    sizes: list[int] = []

    def joined(some: Any) -> Any:
        sizes.append(len(some))
        return _joined(some)

    monkeypatch.setattr("services.audio.engine.runtimes.faster_whisper._joined", joined)
    together = faster_whisper.align(windows, [START] * 3, texts, frames())
    assert sizes == [2, 1]
    for row in range(3):
        (alone,) = faster_whisper.align([windows[row]], [START], [texts[row]], [frames()[row]])
        assert _moments(together[row]) == pytest.approx(_moments(alone), abs=TOKEN_SECONDS)
        assert together[row].probabilities == pytest.approx(alone.probabilities, abs=LOGPROB)


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [
        ([], []),
        ([9], [[0]]),
        ([99, 2, 3], [[1, 2], [0]]),
        ([5, 5, 5], [[0, 1], [2]]),
        ([4, 1, 6, 1], [[1, 3], [0], [2]]),
    ],
)
def test_parts_are_as_wide_as_their_longest_row(lengths: list[int], parts: list[list[int]]) -> None:
    assert list(padded_parts(range(len(lengths)), lengths, 10)) == parts


def _moments(aligned: Any) -> list[float]:
    """Returns the start of each token in seconds."""
    moments: list[float] = (
        aligned.time_indices[np.diff(aligned.text_indices, prepend=-1) > 0] * TOKEN_SECONDS
    ).tolist()
    return moments


@pytest.mark.slow
def test_languages_are_detected_and_translated_from(multilingual: FasterWhisper) -> None:
    windows = multilingual.encode(mels()[:2])
    assert multilingual.ready.multilingual
    assert len(multilingual.ready.languages) == 99
    for language, probability in multilingual.detect(windows):
        assert language == "en"
        assert 0.5 < probability <= 1
    starts = [multilingual.vocabulary.start("en", "transcribe"), multilingual.vocabulary.start("de", "transcribe")]
    english, german = multilingual.decode([windows[0], windows[0]], starts, step(max_tokens=60))
    assert understood(multilingual.vocabulary.decode(english.tokens), spoken()[0])
    assert german.tokens != english.tokens
    texts = [[token for token in one.tokens if token < multilingual.vocabulary.eot] for one in (english, german)]
    aligned = multilingual.align([windows[0], windows[0]], starts, texts, frames()[:1] * 2)
    assert [len(one.probabilities) for one in aligned] == [len(text) for text in texts]


def test_eight_bits_are_the_default_on_a_cpu() -> None:
    loaded = FasterWhisper(options(tiny_en_ct2()), lambda _: None)
    assert "int8" in loaded._model.compute_type
    (decoded,) = loaded.decode(loaded.encode(mels()[:1]), [START], step(beam_size=5))
    assert understood(loaded.vocabulary.decode(decoded.tokens), spoken()[0])


def test_wrong_models_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_en_ct2(), folder)
    with (folder / "model.bin").open("r+b") as file:
        file.truncate(1_000_000)
    _refused(folder, "MODEL_INVALID", r"model\.bin cannot be loaded")
    (folder / "model.bin").write_bytes(b"no model")
    _refused(folder, "MODEL_INVALID", r"model\.bin cannot be loaded")
    (folder / "vocabulary.txt").unlink()
    _refused(folder, "MODEL_INVALID", r"vocabulary\.txt is missing")


def test_a_vocabulary_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_en_ct2(), folder)
    names = (folder / "vocabulary.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    (folder / "vocabulary.txt").unlink()
    (folder / "vocabulary.json").write_text(json.dumps([*names[:50256], "Ġ" + "x" * 40, *names[50256:]]))
    _refused(folder, "MODEL_INVALID", "vocabulary")


def test_unsupported_features_are_reported() -> None:
    _refused(
        tiny_en_ct2(),
        "UNSUPPORTED",
        "ALLM_AUDIO_COMPUTE_TYPE=float8: on this cpu, CTranslate2 supports",
        compute_type="float8",
    )
    if not ctranslate2.get_cuda_device_count():
        with pytest.raises(EngineError, match="a GPU is requested"):
            FasterWhisper(dataclasses.replace(options(tiny_en_ct2()), gpu=True), lambda _: None)


def _refused(folder: Path, code: str, words: str, **others: Any) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        FasterWhisper(options(folder, **others), lambda _: None)
    assert caught.value.code == code


def test_small_models_compute_several_calls_at_the_same_time(
    faster_whisper: FasterWhisper,
) -> None:
    two = dataclasses.replace(options(tiny_en_ct2(), compute_type="float32"), threads=2)
    model = FasterWhisper(two, lambda _: None)
    assert (faster_whisper.lanes, model.lanes) == (1, 2)
    window = model.encode(mels()[:1, :, :1500])
    wanted = model.decode(window, [START], step(beam_size=5))
    with ThreadPoolExecutor(2) as lanes:
        found = list(lanes.map(lambda _: model.decode(window, [START], step(beam_size=5)), range(2)))
    assert all(same(one[0], wanted[0]) for one in found)
