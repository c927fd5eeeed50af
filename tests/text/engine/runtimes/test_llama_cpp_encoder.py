"""The llama_cpp runtime for embedding models, on the same real weights as the safetensors model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.text.engine.embedding_loop import Vectors
from services.text.engine.runtimes.llama_cpp_encoder import BATCH_INPUTS, LlamaEncoder, LlamaReranker
from services.worker.messages import EngineError
from tests.demo_model import demo_model
from tests.late import late
from tests.minilm import SIZE, minilm, write_gguf
from tests.text.engine.session import options

safetensors_numpy = late("safetensors.numpy")
torch = late("torch")
torch_encoder = late("services.text.engine.runtimes.torch.encoder")
transformers = late("transformers")

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


def test_a_reranker_scores_as_transformers_does(tmp_path: Path) -> None:
    """BERT's head, sigmoid(w tanh(pooler first)). All tokens have the first type, as in XLM-RoBERTa."""
    random = np.random.default_rng(1)
    head = {
        "cls.weight": safetensors_numpy.load_file(minilm() / "model.safetensors")["pooler.dense.weight"],
        "cls.bias": safetensors_numpy.load_file(minilm() / "model.safetensors")["pooler.dense.bias"],
        "cls.output.weight": random.standard_normal((1, SIZE)),
        "cls.output.bias": random.standard_normal(1),
    }
    given = options(write_gguf(tmp_path / "m.gguf", 4, types=1, more=head), context_tokens=0, threads=1)
    reranker = LlamaReranker(given, lambda _: None)
    assert (reranker.ready.dimensions, reranker.normalised) == (1, False)
    pairs = [reranker.pair(TEXTS[0], text, 0) for text in TEXTS]
    with torch.inference_mode():
        tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
        model = transformers.AutoModel.from_pretrained(minilm())
        expected = []
        for text, pair in zip(TEXTS, pairs, strict=True):
            inputs = tokenizer(TEXTS[0], text, return_tensors="pt")
            assert inputs["input_ids"][0].tolist() == pair.tolist()
            inputs["token_type_ids"] *= 0
            pooled = model(**inputs).pooler_output[0].numpy()
            logit = float(head["cls.output.weight"][0] @ pooled + head["cls.output.bias"][0])
            expected.append(1 / (1 + np.exp(-logit)))
    scores = reranker.encode(pairs)
    assert scores[:, 0] == pytest.approx(np.array(expected), abs=1e-3)
    assert reranker.pair("a", "b c d e", 2).tolist() == reranker.pair("a", "b c", 0).tolist()


def test_a_model_that_embeds_does_not_rerank(path: Path) -> None:
    with pytest.raises(EngineError, match="does not rerank") as caught:
        LlamaReranker(options(path, context_tokens=0, threads=1), lambda _: None)
    assert caught.value.code == "UNSUPPORTED"


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
