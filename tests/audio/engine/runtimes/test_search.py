"""The rules on which tokens may follow, compared with the reference's own filters."""

from __future__ import annotations

import random

import pytest

from services.audio.engine.vocabulary import WhisperVocabulary, converted_vocabulary
from tests.audio.engine.reference_tokenizer import reference_tokenizer
from tests.audio.engine.runtimes.spoken import step
from tests.late import late
from tests.whisper_weights import tiny_en_ct2

token_rules = late("services.audio.engine.runtimes.search")
torch = late("torch")
whisper_decoding = late("whisper.decoding")


@pytest.fixture(scope="module")
def vocabulary() -> WhisperVocabulary:
    return converted_vocabulary(tiny_en_ct2())


def written(vocabulary: WhisperVocabulary, length: int, rows: int = 12) -> torch.Tensor:
    """Generates sequences of one length in the form that models write: phrases between increasing timestamps."""
    draw = random.Random(length)  # noqa: S311
    answers = []
    for _ in range(rows):
        time = draw.randrange(50)
        answer = [vocabulary.timestamp_begin + time]
        while len(answer) < length:
            answer += [draw.randrange(1000) for _ in range(draw.randrange(1, 4))]
            time += draw.randrange(1, 60)
            answer += [vocabulary.timestamp_begin + time] * 2
        answers.append(answer[:length])
    return torch.tensor(answers).reshape(rows, length)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 9, 20])
@pytest.mark.parametrize("timestamps", [True, False], ids=["timestamps", "text"])
def test_the_same_tokens_are_forbidden(vocabulary: WhisperVocabulary, length: int, timestamps: bool) -> None:
    answers = written(vocabulary, length)
    logits = torch.randn(len(answers), vocabulary.size, generator=torch.Generator().manual_seed(length))
    logits[::3, vocabulary.timestamp_begin :] += 3  # where timestamps are likely, no text token may follow
    wanted = logits.clone()
    tokenizer = reference_tokenizer(0)
    filters = [whisper_decoding.SuppressBlank(tokenizer, 0), whisper_decoding.SuppressTokens(vocabulary.suppressed)]
    if timestamps:
        filters.append(whisper_decoding.ApplyTimestampRules(tokenizer, 0, 50))
    for one in filters:
        one.apply(wanted, answers)
    token_rules.TokenRules(vocabulary, step(timestamps=timestamps), torch.device("cpu")).apply(logits, answers)
    assert torch.equal(logits, wanted)
