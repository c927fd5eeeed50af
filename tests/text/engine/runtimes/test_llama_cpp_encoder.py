"""The llama_cpp runtime for embedding models, on the same real weights as the safetensors model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.text.engine.embedding_loop import Vectors
from services.text.engine.runtimes.llama_cpp_encoder import BATCH_INPUTS, LlamaEncoder
from services.worker.messages import EngineError
from tests.demo_model import demo_model
from tests.late import late
from tests.minilm import SIZE, minilm, write_gguf
from tests.text.engine.session import options

torch_encoder = late("services.text.engine.runtimes.torch.encoder")

TEXTS = [
    "A man is eating food.",
    "Somebody eats a meal.",
    "The stock market fell sharply on Tuesday.",
    "x",
    "Größe, naïve café — 北京 (2024)! " * 9,
]


def load(path: Path, **changes: int) -> LlamaEncoder:
    return LlamaEncoder(options(path, **{"context_tokens": 0, "threads": 1, **changes}), lambda _: None)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("minilm") / "minilm.gguf")


@pytest.fixture(scope="module")
def encoder(path: Path) -> LlamaEncoder:
    return load(path)


def encoded(encoder: LlamaEncoder | torch_encoder.TorchEncoder, texts: list[str]) -> Vectors:
    vectors = encoder.encode([encoder.tokenize(text) for text in texts])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def one_by_one(encoder: LlamaEncoder, texts: list[str]) -> Vectors:
    return np.concatenate([encoded(encoder, [text]) for text in texts])


def test_it_is_what_its_header_says(encoder: LlamaEncoder) -> None:
    ready = encoder.ready
    assert (ready.context_tokens, ready.dimensions, ready.vocabulary) == (512, SIZE, 30522)
    assert encoder.normalised


def test_it_agrees_with_the_same_model_as_safetensors(encoder: LlamaEncoder) -> None:
    safetensors = torch_encoder.TorchEncoder(options(minilm(), threads=1), lambda _: None)
    for text in TEXTS:
        assert encoder.tokenize(text).tolist() == safetensors.tokenize(text).tolist()
    ours, theirs = encoded(encoder, TEXTS), encoded(safetensors, TEXTS)
    assert (ours * theirs).sum(1).min() > 0.999
    assert encoder.normalised == safetensors.normalised


def test_similar_meanings_are_close(encoder: LlamaEncoder) -> None:
    vectors = encoded(encoder, TEXTS[:3])
    assert vectors[0] @ vectors[1] > 0.6
    assert max(vectors[0] @ vectors[2], vectors[1] @ vectors[2]) < 0.2


def test_a_batch_is_what_its_inputs_are_one_by_one(encoder: LlamaEncoder) -> None:
    many = [" ".join(TEXTS[at % 3].split()[: 1 + at % 5]) for at in range(40)] + TEXTS
    assert (encoded(encoder, many) * one_by_one(encoder, many)).sum(1).min() > 0.9999


def test_as_many_and_as_long_inputs_as_it_says(encoder: LlamaEncoder) -> None:
    short = encoded(encoder, ["a"] * BATCH_INPUTS)
    assert (short @ short.T).min() > 0.9999
    longest = encoder.tokenize("a " * 510)
    assert len(longest) == encoder.ready.context_tokens
    long = encoded(encoder, ["a " * 510] * 5)
    assert (long @ long.T).min() > 0.9999


def test_a_header_that_does_not_say_how_to_pool_takes_the_mean(tmp_path: Path, encoder: LlamaEncoder) -> None:
    silent, first = (load(write_gguf(tmp_path / name, pooling)) for name, pooling in (("a", None), ("b", 2)))
    assert encoded(silent, TEXTS) == pytest.approx(encoded(encoder, TEXTS), abs=1e-5)
    assert (encoded(first, TEXTS) * encoded(encoder, TEXTS)).sum(1).max() < 0.99, "2 is the first token's"


def test_a_model_that_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        load(write_gguf(tmp_path / "m.gguf", pooling=4))
    assert caught.value.code == "UNSUPPORTED"
    assert "does not embed" in caught.value.message


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(EngineError) as caught:
        load(tmp_path / "m.gguf")
    assert caught.value.code == "MODEL_INVALID"


def test_decoder_computes_every_batch_from_scratch() -> None:
    """A decoder has a KV cache, which must not carry over between batches."""
    decoder = load(demo_model(), context_tokens=128, batch_tokens=128)
    assert decoder.ready.context_tokens == 128
    texts = [*TEXTS[:4], "word " * 40, "word " * 60]
    alone = one_by_one(decoder, texts)
    assert (encoded(decoder, texts) * alone).sum(1).min() > 0.999
    assert (one_by_one(decoder, texts) * alone).sum(1).min() > 0.9999
