"""Weights that the torch runtime refuses to load, and its messages; packed linear layers against plain ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from services.text.engine.messages import EngineOptions
from services.worker.messages import EngineError
from tests.late import late
from tests.text.families.random_models import shard, write_json
from tests.text.families.torch_session import alone, load

safetensors_torch = late("safetensors.torch")
torch = late("torch")
torch_engine = late("services.text.engine.runtimes.torch.engine")
weights = late("services.text.engine.runtimes.torch.weights")

WEIGHTS = "model.safetensors"
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    return shutil.copytree(llama, tmp_path / "model")


def refusal(folder: Path, **changes: Any) -> EngineError:
    with pytest.raises(EngineError) as caught:
        load(folder, **changes)
    assert "\n" not in caught.value.message
    return caught.value


def reconfigure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | changes)


@pytest.mark.parametrize("kind", ["nonsense", None, 7])
def test_an_unknown_architecture_is_unsupported_by_name(folder: Path, kind: object) -> None:
    reconfigure(folder, model_type=kind)
    found = refusal(folder)
    assert found.code == "UNSUPPORTED"
    assert repr(kind) in found.message


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("mamba", "linear_attention"),
        ("jamba", "runs? not yet|does not run yet"),
        ("t5", "generates no text"),
        ("bloom", "its own way"),
    ],
)
def test_layers_that_the_cache_cannot_hold_are_unsupported(folder: Path, kind: str, reason: str) -> None:
    write_json(folder / "config.json", {"model_type": kind})
    found = refusal(folder)
    assert found.code == "UNSUPPORTED"
    assert repr(kind) in found.message
    assert any(part in found.message for part in reason.split("|")), found.message


def test_code_of_the_models_own_is_never_run(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('it was run')")
    reconfigure(folder, auto_map={"AutoModelForCausalLM": "evil.Evil"})
    found = refusal(folder)
    assert found.code == "UNSUPPORTED"
    assert "auto_map" in found.message


@pytest.mark.parametrize("content", ["", "[]", '{"model_type": "llama", "hidden_size": "wide"}'])
def test_a_broken_configuration_names_its_file(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    found = refusal(folder)
    assert found.code == "MODEL_INVALID"
    assert "config.json" in found.message


def test_missing_tensors_are_named(folder: Path) -> None:
    tensors = safetensors_torch.load_file(folder / WEIGHTS)
    del tensors[UP]
    safetensors_torch.save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    found = refusal(folder)
    assert found.code == "MODEL_INVALID"
    assert UP in found.message


def test_tensors_of_the_wrong_shape_are_named(folder: Path) -> None:
    tensors = safetensors_torch.load_file(folder / WEIGHTS)
    tensors[UP] = tensors[UP][:3].clone()
    safetensors_torch.save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    found = refusal(folder)
    assert found.code == "MODEL_INVALID"
    assert UP in found.message
    assert "(3, 128)" in found.message


def test_a_cut_file_is_named(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-64])
    found = refusal(folder)
    assert found.code == "MODEL_INVALID"
    assert WEIGHTS in found.message


def test_pickled_weights_are_never_read(folder: Path) -> None:
    torch.save(safetensors_torch.load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    assert refusal(folder).code == "MODEL_INVALID"


def test_shards_are_one_model_and_a_missing_one_is_named(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    _, second = shard(folder, llama)
    assert alone(load(folder), [5, 6, 7]).tokens == alone(load(llama), [5, 6, 7]).tokens
    (folder / second).unlink()
    found = refusal(folder)
    assert found.code == "MODEL_INVALID"
    assert second in found.message


def test_a_cache_that_does_not_fit_is_out_of_memory(llama: Path) -> None:
    found = refusal(llama, kv_tokens=10**13, context_tokens=2048, max_sequences=10**6)
    assert found.code == "OUT_OF_MEMORY"
    assert "ALLM_KV_TOKENS" in found.message


def test_the_precision_is_as_asked_or_16_bits(llama: Path) -> None:
    config, cpu = weights.read_config(llama), torch.device("cpu")
    assert weights.choose_dtype("float32", config, cpu) == torch.float32
    assert weights.choose_dtype("float16", config, cpu) == torch.float16
    expected = torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    config.dtype = torch.float32
    assert weights.choose_dtype("auto", config, cpu) == expected
    config.dtype = torch.float16
    assert weights.choose_dtype("auto", config, torch.device("cuda")) == torch.float16


def test_progress_reaches_the_end(llama: Path) -> None:
    seen: list[float] = []
    options = EngineOptions(
        model_id="m",
        path=str(llama),
        threads=1,
        gpu=False,
        context_tokens=0,
        kv_tokens=0,
        max_sequences=2,
        batch_tokens=64,
        chunk_tokens=32,
        prefix_cache=True,
        dtype="float32",
    )
    ready = torch_engine.SafetensorsEngine(options, seen.append).ready
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 5
    assert (ready.context_tokens, ready.kv_tokens) == (2048, 2048), "what the model was trained for, once at least"


def new_layer(*, bias: bool) -> Any:
    class Layer(torch.nn.Module):
        """Layers as in a model definition: three share one input, two share another, one is alone."""

        def __init__(self) -> None:
            super().__init__()
            sizes = {"q_proj": 64, "k_proj": 16, "v_proj": 16, "gate_proj": 40, "up_proj": 40}
            for name, size in sizes.items():
                setattr(self, name, torch.nn.Linear(32, size, bias=bias))
            self.o_proj = torch.nn.Linear(64, 32, bias=bias)

        def forward(self, rows: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
            query = self.q_proj(rows)
            return [
                *(query, self.k_proj(rows), self.v_proj(rows), self.o_proj(query)),
                *(self.up_proj(other), self.gate_proj(other), self.gate_proj(rows)),
            ]

    return Layer()


def test_packed_layers_compute_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    for bias in (False, True):
        layer = new_layer(bias=bias).to(torch.bfloat16).requires_grad_(False)
        for number in (1, 5):
            inputs = [torch.randn(1, number, 32, generator=generator).bfloat16() for _ in range(2)]
            before = layer(*inputs)
            weights.pack_linears(layer)
            for _ in range(2):
                for found, expected in zip(layer(*inputs), before, strict=True):
                    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
            layer = new_layer(bias=bias).to(torch.bfloat16).requires_grad_(False)
        weights.pack_linears(layer)
        assert isinstance(layer.k_proj, weights.PartOfLinear) == weights.computes_bfloat16()


def test_joint_results_are_not_reused() -> None:
    layer = new_layer(bias=False).to(torch.bfloat16).requires_grad_(False)
    weights.pack_linears(layer)
    first, second = (torch.full((1, 1, 32), value).bfloat16() for value in (1.0, 2.0))
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer, name)(first)
    again = [getattr(layer, name)(second) for name in ("k_proj", "q_proj", "v_proj")]
    expected = [2 * getattr(layer, name)(first) for name in ("k_proj", "q_proj", "v_proj")]
    for found, wanted in zip(again, expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)


def test_layers_in_32_bits_are_left_alone() -> None:
    layer = new_layer(bias=False)
    weights.pack_linears(layer)
    assert type(layer.q_proj) is torch.nn.Linear
