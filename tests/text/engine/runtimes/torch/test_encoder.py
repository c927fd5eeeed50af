"""The torch runtime for embedding models: real weights against the published algorithm, and all architectures.

Exact comparisons ask for float32: by default a CPU may compute in bfloat16.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from services.models.runtimes import RUNTIMES
from services.text.engine.embedding_loop import Tokens, Vectors
from services.text.engine.runtimes.torch.recipe import POOLINGS
from services.worker.messages import EngineError
from tests.demo_model import demo_safetensors
from tests.late import late
from tests.minilm import LIMIT, SIZE, minilm
from tests.text.engine.tiny_encoders import PLACES, options, write_model, write_steps

safetensors_torch = late("safetensors.torch")
torch = late("torch")
torch_encoder = late("services.text.engine.runtimes.torch.encoder")
torch_pooling = late("services.text.engine.runtimes.torch.encoder")
transformers = late("transformers")

(EMBEDS,) = [runtime.architectures["embeddings"] for runtime in RUNTIMES if runtime.name == "torch"]
DECODERS = {"gemma", "gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3"}
TEXTS = [
    "A man is eating food.",
    "Somebody eats a meal.",
    "The stock market fell sharply on Tuesday.",
    "x",
    "Größe, naïve café — 北京 (2024)! " * 9,
]
LETTERS = ["abc", "a", "hello world", "the quick brown fox jumps over", "ba"]


@pytest.fixture(scope="module")
def encoder() -> torch_encoder.TorchEncoder:
    fractions: list[float] = []
    made = torch_encoder.TorchEncoder(options(minilm(), dtype="float32"), fractions.append)
    assert fractions[-1] == 1.0
    return made


def loaded(folder: Path, dtype: str = "float32") -> torch_encoder.TorchEncoder:
    return torch_encoder.TorchEncoder(options(folder, dtype=dtype), lambda _: None)


def encoded(encoder: torch_encoder.TorchEncoder, texts: list[str]) -> Vectors:
    return encoder.encode([encoder.tokenize(text) for text in texts])


def one_by_one(encoder: torch_encoder.TorchEncoder, texts: list[str]) -> Vectors:
    return np.concatenate([encoded(encoder, [text]) for text in texts])


def unit(vectors: Vectors) -> Vectors:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def refusal(folder: Path) -> EngineError:
    with pytest.raises(EngineError) as caught:
        torch_encoder.TorchEncoder(options(folder), lambda _: None)
    return caught.value


# --- real weights


def test_it_is_what_its_files_say(encoder: torch_encoder.TorchEncoder) -> None:
    ready = encoder.ready
    assert (ready.context_tokens, ready.dimensions, ready.vocabulary) == (LIMIT, SIZE, 30522)
    assert encoder.normalised


def test_vectors_are_those_of_the_published_algorithm(encoder: torch_encoder.TorchEncoder) -> None:
    """Padded together, averaged over an input's own tokens, then normalised to length one, as in the model's card."""
    with torch.inference_mode():
        tokenizer, model = (
            transformers.AutoTokenizer.from_pretrained(minilm()),
            transformers.AutoModel.from_pretrained(minilm()),
        )
        inputs = tokenizer(TEXTS, padding=True, truncation=False, return_tensors="pt")
        hidden = model(**inputs)[0]
        mask = inputs["attention_mask"].unsqueeze(-1).expand(hidden.size()).float()
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        expected = torch.nn.functional.normalize(pooled, p=2, dim=1).numpy()
        assert unit(encoded(encoder, TEXTS)) == pytest.approx(expected, abs=1e-5)


def test_a_batch_is_what_its_inputs_are_one_by_one(encoder: torch_encoder.TorchEncoder) -> None:
    many = [" ".join(TEXTS[at % 3].split()[: 1 + at % 5]) for at in range(40)] + TEXTS
    assert encoded(encoder, many) == pytest.approx(one_by_one(encoder, many), abs=1e-5)


def test_threads_compute_groups_of_their_own_and_share_one_that_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = torch_encoder.TorchEncoder(options(minilm(), dtype="float32", threads=2), lambda _: None)
    inputs = [encoder.tokenize(" ".join(LETTERS * (1 + number % 3))) for number in range(16)]
    alone = np.concatenate([encoder.encode([tokens]) for tokens in inputs])
    computed: list[tuple[int, int]] = []  # inputs, and the threads that operations of their group use
    compute = encoder._compute

    def counted(group: list[Tokens]) -> Vectors:
        computed.append((len(group), torch.get_num_threads()))
        return compute(group)

    monkeypatch.setattr(encoder, "_compute", counted)
    np.testing.assert_allclose(encoder.encode(inputs), alone, atol=1e-5)
    assert sum(size for size, _ in computed) == len(inputs)
    assert len(computed) >= 4
    assert {threads for _, threads in computed} == {1}
    computed.clear()
    encoder.encode([np.resize(inputs[0], LIMIT)])  # as long as the model allows, and still not worth sharing
    assert computed == [(1, 1)]
    monkeypatch.setattr(torch_encoder, "_WIDE", LIMIT * SIZE)
    encoder.encode([np.resize(inputs[0], LIMIT)])
    assert computed[1:] == [(1, 2)]


def test_similar_meanings_are_close(encoder: torch_encoder.TorchEncoder) -> None:
    vectors = unit(encoded(encoder, TEXTS[:3]))
    alike, strange = vectors[0] @ vectors[1], max(vectors[0] @ vectors[2], vectors[1] @ vectors[2])
    assert alike > 0.6
    assert strange < 0.2


def test_texts_are_never_cut_off(encoder: torch_encoder.TorchEncoder) -> None:
    assert len(encoder.tokenize("word " * 1000)) == 1002, "the tokenizer's own file asks for 128"


def test_an_operator_may_set_a_lower_limit() -> None:
    assert torch_encoder.TorchEncoder(options(minilm(), context_tokens=100), lambda _: None).ready.context_tokens == 100


# --- every architecture that the registry promises


@pytest.mark.parametrize("architecture", sorted(EMBEDS))
def test_an_architecture_embeds_a_batch_as_its_inputs_alone(tmp_path: Path, architecture: str) -> None:
    decoder = architecture in DECODERS
    write_model(tmp_path, architecture, decoder=decoder)
    write_steps(tmp_path, ("Normalize", {}), pooling={"pooling_mode_lasttoken": True} if decoder else "mean")
    encoder = loaded(tmp_path)
    assert encoder.ready.dimensions == 32
    assert PLACES - 2 <= encoder.ready.context_tokens <= PLACES
    alone = one_by_one(encoder, LETTERS)
    assert np.ptp(alone, axis=0).max() > 1e-3, "inputs differ"
    assert encoded(encoder, LETTERS) == pytest.approx(alone, abs=1e-5)
    whole = "a" * (encoder.ready.context_tokens - 2)
    assert np.isfinite(encoded(encoder, [whole])).all(), "as long as it says that an input may be"


@pytest.mark.parametrize(
    ("architecture", "both_ways"),
    [("qwen2", {}), ("qwen2", {"is_causal": False}), ("gemma3_text", {"use_bidirectional_attention": True})],
)
def test_a_decoder_looks_back_only_unless_it_was_made_to_look_both_ways(
    tmp_path: Path, architecture: str, both_ways: dict[str, bool]
) -> None:
    write_model(tmp_path, architecture, decoder=True, **both_ways)
    write_steps(tmp_path, pooling={"pooling_mode_cls_token": True})
    encoder = loaded(tmp_path)
    first, second = one_by_one(encoder, ["abc", "abx"])
    assert (np.abs(first - second).max() > 1e-4) == bool(both_ways)
    assert encoded(encoder, ["abc", "a"])[0] == pytest.approx(first, abs=1e-5)


# --- poolings and layers


@pytest.mark.parametrize("pooling", POOLINGS)
def test_poolings_look_at_an_inputs_own_tokens_only(pooling: str) -> None:
    assert set(torch_pooling.POOLS) == set(POOLINGS)
    hidden = torch.tensor([[[1.0, 8.0], [3.0, 2.0], [50.0, 50.0]], [[4.0, 4.0], [2.0, 6.0], [6.0, 2.0]]])
    expected = {
        "mean": [[2, 5], [4, 4]],
        "cls": [[1, 8], [4, 4]],
        "last": [[3, 2], [6, 2]],
        "max": [[3, 8], [6, 6]],
        "mean_sqrt_len": [[4 / 2**0.5, 10 / 2**0.5], [12 / 3**0.5, 12 / 3**0.5]],
        "weightedmean": [[7 / 3, 4], [26 / 6, 22 / 6]],
    }
    pooled = torch_pooling.POOLS[pooling](hidden, torch.tensor([2, 3]))
    assert pooled.numpy() == pytest.approx(np.array(expected[pooling], np.float32), abs=1e-5)


def test_layers_after_pooling_are_applied_in_their_order(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    write_steps(tmp_path)
    plain = encoded(loaded(tmp_path), LETTERS)
    identity = "torch.nn.modules.linear.Identity"
    write_steps(tmp_path, ("Dense", {"activation_function": identity}), ("Dense", {}), ("Normalize", {}))
    first, second, bias = torch.randn(8, 32), torch.randn(4, 8), torch.randn(4)
    safetensors_torch.save_file({"linear.weight": first}, tmp_path / "2_Dense/model.safetensors")
    safetensors_torch.save_file({"linear.weight": second, "linear.bias": bias}, tmp_path / "3_Dense/model.safetensors")
    encoder = loaded(tmp_path)
    assert encoder.ready.dimensions == 4
    expected = np.tanh(plain @ first.numpy().T @ second.numpy().T + bias.numpy())
    assert encoded(encoder, LETTERS) == pytest.approx(expected, abs=1e-4)


# --- precision


def least_cosine(folder: Path, texts: list[str]) -> float:
    """Returns the least cosine between vectors in bfloat16 and in float32, of a batch and of single texts."""
    exact, rounded = unit(encoded(loaded(folder), texts)), loaded(folder, "bfloat16")
    found = (encoded(rounded, texts), one_by_one(rounded, texts))
    return min(float((exact * unit(vectors)).sum(1).min()) for vectors in found)


def pooled(folder: Path, model: Path, pooling: str) -> Path:
    """Returns a folder with a model's files and this pooling."""
    for file in model.iterdir():
        if file.is_file() and file.name != "modules.json":
            (folder / file.name).symlink_to(file)
    ends = {"cls": "cls_token", "last": "lasttoken"}
    write_steps(folder, pooling={f"pooling_mode_{ends.get(pooling, f'{pooling}_tokens')}": True})
    return folder


@pytest.mark.parametrize("pooling", POOLINGS)
def test_real_vectors_in_bfloat16_point_where_those_in_float32_do(tmp_path: Path, pooling: str) -> None:
    assert least_cosine(pooled(tmp_path, minilm(), pooling), TEXTS) > 0.9995


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_real_decoders_vectors_in_bfloat16_point_where_those_in_float32_do(tmp_path: Path, pooling: str) -> None:
    assert least_cosine(pooled(tmp_path, demo_safetensors(), pooling), TEXTS) > 0.999


@pytest.mark.parametrize("architecture", sorted(EMBEDS - {"deberta"}))
def test_every_architecture_embeds_in_bfloat16(tmp_path: Path, architecture: str) -> None:
    decoder = architecture in DECODERS
    write_model(tmp_path, architecture, decoder=decoder)
    write_steps(tmp_path, pooling={"pooling_mode_lasttoken": True} if decoder else "mean")
    assert least_cosine(tmp_path, LETTERS) > 0.999


@pytest.mark.parametrize(
    ("architecture", "instructions", "dtype", "expected"),
    [
        ("bert", True, "auto", "bfloat16"),
        ("bert", False, "auto", "float32"),
        ("bert", True, "float32", "float32"),
        ("deberta", True, "auto", "float32"),
    ],
)
def test_auto_is_bfloat16_on_a_processor_that_multiplies_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    architecture: str,
    instructions: bool,
    dtype: str,
    expected: str,
) -> None:
    monkeypatch.setattr(torch_encoder, "has_bfloat16", lambda: instructions)
    monkeypatch.setattr(torch_encoder, "computes_bfloat16", lambda: True)
    write_model(tmp_path, architecture)
    encoder = loaded(tmp_path, dtype)
    assert encoder._model.get_input_embeddings().weight.dtype == getattr(torch, expected)
    assert encoded(encoder, LETTERS).dtype == np.float32


# --- refusals


def test_an_architecture_that_transformers_lacks_is_unsupported_by_name(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "exotic-9000"}))
    error = refusal(tmp_path)
    assert error.code == "UNSUPPORTED"
    assert "exotic-9000" in error.message


def test_a_models_own_code_is_never_run(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "own.Bert"}}))
    (tmp_path / "own.py").write_text("raise SystemExit('it was run')")
    error = refusal(tmp_path)
    assert error.code == "UNSUPPORTED"
    assert "own.Bert" in error.message


def test_missing_weights_are_named(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    weights = safetensors_torch.load_file(tmp_path / "model.safetensors")
    gone = "encoder.layer.1.output.dense.weight"
    del weights[gone]
    safetensors_torch.save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    error = refusal(tmp_path)
    assert error.code == "MODEL_INVALID"
    assert gone in error.message
    (tmp_path / "model.safetensors").unlink()
    assert refusal(tmp_path).code == "MODEL_INVALID"


# --- imports on a bare machine

BARE = """
import sys
for name in ("msgspec", "grpc", "google", "llama_cpp", "llguidance", "jinja2", "allm"):
    sys.modules[name] = None  # as if it were not installed
from services.text.engine.embedding_loop import EmbeddingLoop
from services.text.engine.messages import EngineOptions
from services.text.engine.runtimes.torch.encoder import TorchEncoder
options = EngineOptions(model_id="m", path=sys.argv[1], threads=1, gpu=False, context_tokens=0, kv_tokens=0,
                        max_sequences=1, batch_tokens=256, chunk_tokens=64, prefix_cache=False)
encoder = TorchEncoder(options, lambda fraction: None)
print(encoder.encode([encoder.tokenize("abc")]).shape)
"""


@pytest.mark.slow
def test_it_needs_torch_and_transformers_and_nothing_else(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    done = subprocess.run([sys.executable, "-c", BARE, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "(1, 32)\n"), done.stderr
