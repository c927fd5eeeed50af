"""The `whisper` runtime, compared with openai-whisper's own decoding of the same weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.audio.engine.runtime import TOKEN_SECONDS, Aligned
from services.audio.engine.vocabulary import WhisperVocabulary
from services.worker.messages import EngineError
from tests.audio.engine.reference_tokenizer import reference_tokenizer
from tests.audio.engine.runtimes.spoken import LOGPROB, encoded, frames, mels, options, same, step
from tests.late import late
from tests.whisper_weights import tiny_en_pt

pytestmark = pytest.mark.slow

torch = late("torch")
whisper_decoding = late("whisper.decoding")
whisper_runtime = late("services.audio.engine.runtimes.whisper")
whisper_timing = late("whisper.timing")

START = [50257]  # token of tiny.en: the start of the transcript
searches = pytest.mark.parametrize("beams", [1, 5], ids=["greedy", "beams"])


def prompts_of(vocabulary: WhisperVocabulary) -> list[list[int]]:
    """Returns preceding texts of several lengths, and None."""
    before = ["", " Sense", " Sense and Sensibility, by Jane Austen."]
    return [[vocabulary.sot_prev, *vocabulary.encode(text), *START] if text else START for text in before]


def starts_and_ends(aligned: Aligned, groups: Sequence[Sequence[int]]) -> tuple[list[float], list[float]]:
    """Returns the start and end of each word in seconds, computed from an alignment as the reference does."""
    jumps = np.diff(aligned.text_indices, prepend=-1) > 0
    times = aligned.time_indices[jumps] * TOKEN_SECONDS
    places = np.cumsum([0, *(len(group) for group in groups[:-1])])
    return times[places[:-1]].tolist(), times[places[1:]].tolist()


def test_windows_are_encoded_as_the_reference_does(
    openai_whisper: whisper_runtime.OpenAIWhisper, reference: Any
) -> None:
    (window,) = openai_whisper.encode(mels()[:1])
    assert torch.allclose(window, reference.encoder(torch.from_numpy(mels()[:1]))[0], atol=1e-3)


@searches
def test_a_batch_of_different_prompts_is_decoded_as_the_reference_decodes_one_by_one(
    openai_whisper: whisper_runtime.OpenAIWhisper, reference: Any, beams: int
) -> None:
    prompts = prompts_of(openai_whisper.vocabulary)
    windows = encoded(openai_whisper)
    found = openai_whisper.decode(windows, prompts, step(beam_size=beams))
    for row, (window, prompt) in enumerate(zip(windows, prompts, strict=True)):
        wanted = reference.decode(
            window,
            whisper_decoding.DecodingOptions(
                fp16=False, language="en", beam_size=beams if beams > 1 else None, prompt=prompt[1:-1]
            ),
        )
        assert same(found[row], wanted), f"row {row}: {found[row]} is not {wanted}"


@searches
def test_a_window_alone_and_in_any_batch_gives_the_same(
    openai_whisper: whisper_runtime.OpenAIWhisper, beams: int
) -> None:
    windows = encoded(openai_whisper)
    prompts = prompts_of(openai_whisper.vocabulary)
    together = openai_whisper.decode(windows, prompts, step(beam_size=beams))
    order = [2, 0]
    some = openai_whisper.decode(
        [windows[row] for row in order], [prompts[row] for row in order], step(beam_size=beams)
    )
    assert all(same(one, together[row]) for one, row in zip(some, order, strict=True))


def test_without_timestamps(openai_whisper: whisper_runtime.OpenAIWhisper, reference: Any) -> None:
    vocabulary = openai_whisper.vocabulary
    prompt = [*START, vocabulary.no_timestamps]
    windows = encoded(openai_whisper)[:1]
    (found,) = openai_whisper.decode(windows, [prompt], step(timestamps=False))
    wanted = reference.decode(
        windows[0], whisper_decoding.DecodingOptions(fp16=False, language="en", without_timestamps=True)
    )
    assert same(found, wanted)
    assert max(found.tokens) < vocabulary.eot


def test_only_another_seed_changes_the_samples(openai_whisper: whisper_runtime.OpenAIWhisper) -> None:
    windows = encoded(openai_whisper)[:2]
    drawn = [
        openai_whisper.decode(windows, [START, START], step(temperature=1.5, seed=seed, max_tokens=10))
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    for decoded in drawn[0]:
        assert openai_whisper.vocabulary.eot not in decoded.tokens
        assert decoded.avg_logprob < 0


def test_no_more_tokens_than_allowed(openai_whisper: whisper_runtime.OpenAIWhisper) -> None:
    windows = encoded(openai_whisper)[:2]
    for beams in (1, 3):
        for decoded in openai_whisper.decode(windows, [START, START], step(beam_size=beams, max_tokens=4)):
            assert len(decoded.tokens) == 4
    vocabulary = openai_whisper.vocabulary
    longest = [vocabulary.sot_prev, *vocabulary.encode(" and") * 440, *START]
    assert len(longest) < openai_whisper.context_tokens
    decoded = openai_whisper.decode(windows, [longest, START], step())
    assert len(decoded[0].tokens) <= openai_whisper.context_tokens + 1 - len(longest)


def test_words_are_where_the_reference_finds_them(
    openai_whisper: whisper_runtime.OpenAIWhisper, reference: Any
) -> None:
    vocabulary = openai_whisper.vocabulary
    windows = encoded(openai_whisper)
    decoded = openai_whisper.decode(windows, [START] * 3, step())
    texts = [[token for token in one.tokens if token < vocabulary.eot] for one in decoded]
    aligned = openai_whisper.align(windows, [START] * 3, texts, frames())
    for row in range(3):
        wanted = whisper_timing.find_alignment(
            reference, reference_tokenizer(0), texts[row], torch.from_numpy(mels()[row]), frames()[row]
        )
        words, groups = vocabulary.split_words([*texts[row], vocabulary.eot], "en")
        assert words[:-1] == [word.word for word in wanted]
        starts, ends = starts_and_ends(aligned[row], groups)
        assert starts == pytest.approx([word.start for word in wanted], abs=TOKEN_SECONDS)
        assert ends == pytest.approx([word.end for word in wanted], abs=TOKEN_SECONDS)
        places = np.cumsum([0, *(len(group) for group in groups[:-1])])
        means = [float(aligned[row].probabilities[i:j].mean()) for i, j in pairwise(places)]
        assert means == pytest.approx([word.probability for word in wanted], abs=LOGPROB)


def test_probabilities_of_an_alignment_are_those_of_the_decoding(openai_whisper: whisper_runtime.OpenAIWhisper) -> None:
    vocabulary = openai_whisper.vocabulary
    windows = encoded(openai_whisper)[:1]
    prompt = [*START, vocabulary.no_timestamps]
    (decoded,) = openai_whisper.decode(windows, [prompt], step(timestamps=False))
    (aligned,) = openai_whisper.align(windows, [START], [decoded.tokens], frames()[:1])
    assert len(aligned.probabilities) == len(decoded.tokens)
    # The difference comes from suppressed tokens and the end of text: both are few and unlikely here.
    assert np.log(aligned.probabilities).sum() / (len(decoded.tokens) + 1) == pytest.approx(
        decoded.avg_logprob, abs=0.1
    )


def test_shorter_windows_share_calls_with_whole_ones(openai_whisper: whisper_runtime.OpenAIWhisper) -> None:
    whole = encoded(openai_whisper)[:2]
    (short,) = openai_whisper.encode(np.ascontiguousarray(mels()[2:3, :, : frames()[2] + 1]))
    assert len(short) == (frames()[2] + 2) // 2
    mixed = openai_whisper.decode([whole[0], short, whole[1]], [START] * 3, step())
    (alone,) = openai_whisper.decode([short], [START], step())
    assert same(mixed[1], alone)
    assert mixed[0].tokens == openai_whisper.decode(whole[:1], [START], step())[0].tokens
    text = openai_whisper.vocabulary.encode(" Unless to be rather cold")
    aligned = openai_whisper.align([whole[0], short], [START] * 2, [text] * 2, [frames()[0], frames()[2]])
    assert all(
        one.time_indices[-1] < count // 2 for one, count in zip(aligned, (frames()[0], frames()[2]), strict=True)
    )


def test_unsupported_features_are_reported(tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match="COMPUTE_TYPE=int8: the runtime whisper supports float32, float16, bfloat16"
    ) as caught:
        whisper_runtime.OpenAIWhisper(options(tiny_en_pt(), compute_type="int8"), lambda _: None)
    assert caught.value.code == "UNSUPPORTED"
    with pytest.raises(EngineError, match=r"nothing\.pt is missing") as caught:
        whisper_runtime.OpenAIWhisper(options(tmp_path / "nothing.pt"), lambda _: None)
    assert caught.value.code == "MODEL_INVALID"
    if not torch.cuda.is_available():
        with pytest.raises(EngineError, match="a GPU is requested"):
            whisper_runtime.OpenAIWhisper(dataclasses.replace(options(tiny_en_pt()), gpu=True), lambda _: None)
