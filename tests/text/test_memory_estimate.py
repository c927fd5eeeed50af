"""The memory estimate of gpt-oss-20b in its own size, and the shapes of layers that a config.json states."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.models.descriptor import ModelDescriptor
from services.models.formats.gguf_header import GgufHeader, read_header
from services.models.runtimes import RUNTIMES, RuntimeSpec
from services.residency.memory.admission import Admission
from services.residency.memory.device_memory import DeviceMemory
from services.residency.memory.host_memory import HostMemory
from services.residency.memory.ledger import Ledger, LedgerSync
from services.residency.memory.readings import Readings
from services.residency.memory.reservation import NeverFits, NoRoom, Reservation
from services.residency.slot import Slot
from services.settings.modality_settings import MIB
from services.settings.settings import load_settings
from services.text.manager import TextManager
from services.text.memory_estimate import ConfigShape, GgufShape, TextMemoryEstimate
from tests.demo_model import demo_model

GIB = 1024**3
FILES = 13_761_300_984  # bytes of the published safetensors
# 24 layers of 32 experts, each 3 x 2880 x 2880 numbers of half a byte; a scale of one byte for every 32.
PACKED = 24 * 32 * 3 * 2880 * 2880 // 2
UNPACKED = FILES + 3 * PACKED - PACKED // 16
PUBLISHED: dict[str, object] = {
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
    "dtype": "bfloat16",
}


@pytest.fixture
def gpt_oss(tmp_path: Path) -> ModelDescriptor:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    return ModelDescriptor(
        id="openai/gpt-oss-20b",
        modality="text",
        format="safetensors",
        architecture="gpt_oss",
        capabilities=frozenset({"chat"}),
        size=FILES,
        context_tokens=131072,
        generation=1,
        unpacked_size=UNPACKED,
        quantization="mxfp4",
        files=(),
        primary=tmp_path,
    )


def on_a_gpu(name: str, *, packs: bool, gpu_bytes: int = 0) -> RuntimeSpec:
    """Returns a runtime on an NVIDIA GPU."""
    runtime = next(one for one in RUNTIMES if one.name == name)
    return replace(runtime, device="cuda", packs=packs, gpu_bytes=gpu_bytes)


def reckoned(model: ModelDescriptor, name: str, *, packs: bool, **environ: str) -> int:
    """Returns the bytes on an NVIDIA GPU, with the settings as installed."""
    settings = load_settings(environ).text
    estimate = TextMemoryEstimate(settings, TextManager(settings).options)
    return estimate(model, on_a_gpu(name, packs=packs)).devices["cuda:0"]


async def admitted(
    model: ModelDescriptor, runtime: RuntimeSpec, folder: Path, used: int, **environ: str
) -> Reservation:
    """Returns a model's reservation on a GPU of which `used` bytes are used, on a host of 64 GiB.

    Raises NeverFits or NoRoom.
    """
    settings = load_settings({"ALLM_HOME": str(folder), **environ})
    manager = TextManager(settings.text)
    readings = Readings(
        host=lambda: HostMemory(total=64 * GIB, used=GIB, source="a test"),
        devices=lambda: [DeviceMemory("cuda:0", runtime.gpu_bytes, used)],
    )
    ledger = await Ledger.open(settings.residency.folder, "unix:nobody", "text")
    slot: Slot[Any] = Slot(model, runtime)
    needed = TextMemoryEstimate(settings.text, manager.options)
    sync = LedgerSync(manager, ledger, readings)
    try:
        await Admission(manager, ledger, sync, needed, settings.residency, readings, patience=0).enter(slot)
    finally:
        await ledger.close()
    assert slot.reservation
    return slot.reservation


@pytest.mark.parametrize("name", ["torch", "vllm"])
async def test_a_card_of_16_gib_holds_gpt_oss(gpt_oss: ModelDescriptor, name: str, tmp_path: Path) -> None:
    """As installed: the cache is as small as needed. An RTX 4080 has 16,376 MiB, its driver takes some hundred."""
    runtime = on_a_gpu(name, packs=True, gpu_bytes=16_376 * MIB)
    reservation = await admitted(gpt_oss, runtime, tmp_path, used=450 * MIB)
    assert FILES < reservation.devices["cuda:0"] < 15 * GIB
    options = TextManager(load_settings({}).text).options(gpt_oss, runtime)
    assert (options.context_tokens, options.kv_tokens) == (16_384, 16_384)
    larger = on_a_gpu(name, packs=True, gpu_bytes=24 * GIB)
    options = TextManager(load_settings({}).text).options(gpt_oss, larger)
    assert (options.context_tokens, options.kv_tokens) == (0, 0), "with room it is as installed"


@pytest.mark.parametrize("name", ["torch", "vllm"])
async def test_a_card_that_is_too_small_is_refused_with_both_figures(
    gpt_oss: ModelDescriptor, name: str, tmp_path: Path
) -> None:
    for runtime, environ, needed, usable in (
        (on_a_gpu(name, packs=True, gpu_bytes=12 * GIB), {}, r".*\b15 GiB on cuda:0", r"11 GiB of 12 GiB"),
        (on_a_gpu(name, packs=False, gpu_bytes=16 * GIB), {}, r".*\b4[12] GiB on cuda:0", r"15 GiB of 16 GiB"),
        (  # a size that somebody has set is not reduced
            on_a_gpu(name, packs=True, gpu_bytes=16 * GIB),
            {"ALLM_KV_TOKENS": "65536"},
            r".*\b17 GiB on cuda:0",
            r"15 GiB of 16 GiB",
        ),
    ):
        with pytest.raises(NeverFits, match=rf"needs {needed} .*weights .* of cuda:0 {usable} may be used"):
            await admitted(gpt_oss, runtime, tmp_path, used=0, **environ)
    with pytest.raises(NoRoom, match=r"needs .*\b15 GiB on cuda:0 .*free: 8\.\d GiB of cuda:0"):
        await admitted(gpt_oss, on_a_gpu(name, packs=True, gpu_bytes=16 * GIB), tmp_path, used=7 * GIB)


def test_experts_are_reckoned_expanded_where_they_do_not_stay_packed(gpt_oss: ModelDescriptor) -> None:
    for found in (
        reckoned(gpt_oss, "torch", packs=False),  # an old GPU, or no Triton
        reckoned(gpt_oss, "torch", packs=True, ALLM_DTYPE="float32"),
        2 * reckoned(gpt_oss, "torch", packs=True, ALLM_TENSOR_PARALLEL="2"),  # divided models are expanded
    ):
        assert found > UNPACKED


@pytest.mark.parametrize(
    ("name", "environ", "row"),
    [
        ("torch", {}, 64 * 2 + 12 * 32),
        ("torch", {"ALLM_MAX_SEQUENCES": "1"}, 64 * 2 + 8 * 16),
        ("torch", {"ALLM_MAX_SEQUENCES": "1", "ALLM_DTYPE": "float32"}, 64 * 4 + 8 * 16),
        ("vllm", {"ALLM_MAX_SEQUENCES": "1"}, 64 * 8),
        ("vllm", {"ALLM_MAX_SEQUENCES": "64"}, 12 * 64),
    ],
)
def test_the_rows_of_a_scored_prompt_are_reckoned(
    gpt_oss: ModelDescriptor, name: str, environ: dict[str, str], row: int
) -> None:
    """A step scores 64 tokens of a prompt: torch keeps their logits, and in float32 copies of 8 rows."""
    settings = load_settings(environ).text
    estimate = TextMemoryEstimate(settings, TextManager(settings).options)

    def compute(vocabulary: int) -> int:
        (gpt_oss.primary / "config.json").write_text(json.dumps({**PUBLISHED, "vocab_size": vocabulary}))
        return estimate(gpt_oss, next(one for one in RUNTIMES if one.name == name)).parts["compute"]

    assert compute(200_000) - compute(100_000) == (row + 800) * 100_000


def shape(folder: Path, **config: object) -> ConfigShape:
    (folder / "config.json").write_text(json.dumps(config))
    return ConfigShape(folder)


def test_grouped_heads_of_every_layer(tmp_path: Path) -> None:
    found = shape(
        tmp_path,
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        max_position_embeddings=8192,
        dtype="bfloat16",
    )
    assert found.cell_numbers == 2 * 3 * 64 * 30
    assert (found.stored, found.inner, found.embedding, found.context_tokens) == (2, 1536, 49152 * 576, 8192)
    assert found.state_bytes == 0


def test_a_head_may_have_a_width_of_its_own_and_a_model_no_groups(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert shape(tmp_path, **sizes, head_dim=128, num_key_value_heads=2).cell_numbers == 2 * 2 * 128 * 2
    assert shape(tmp_path, **sizes).cell_numbers == 2 * 4 * 16 * 2


def test_only_the_attending_layers_of_a_hybrid_have_cells_and_only_the_recurrent_ones_states(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 32,
        "n_groups": 2,
        "conv_kernel": 4,
        "torch_dtype": "bfloat16",
    }
    one = 8 * 16 * 32 * 4 + (8 * 16 + 2 * 2 * 32) * 4 * 2
    for kinds in (
        {"hybrid_override_pattern": "M-M*ME"},
        {"layers_block_type": ["mamba", "mlp", "mamba", "attention", "mamba", "moe"]},
        {"layer_types": ["linear_attention", "mlp", "linear_attention", "full_attention", "linear_attention", "moe"]},
    ):
        found = shape(tmp_path, **sizes, **kinds)
        assert found.state_bytes == 3 * one, kinds
        assert found.cell_numbers == 2 * 2 * 16, kinds


def test_the_text_part_of_a_model_of_several_is_what_counts(tmp_path: Path) -> None:
    inner = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "dtype": "float16"}
    found = shape(tmp_path, hidden_size=9999, text_config=inner)
    assert (found.width, found.stored) == (32, 2)


def test_missing_or_invalid_numbers_count_as_none(tmp_path: Path) -> None:
    found = shape(tmp_path, hidden_size="many", num_attention_heads=-3, num_hidden_layers=True, vocab_size=None)
    assert (found.width, found.layers, found.cell_numbers, found.embedding) == (0, 0, 0, 0)
    (tmp_path / "config.json").write_text("[]")
    assert ConfigShape(tmp_path).cell_numbers == 0


def gguf(lists: dict[str, tuple[int, ...]] | None = None, **numbers: int) -> GgufShape:
    metadata = {"general.architecture": "x", **{f"x.{name.replace('__', '.')}": each for name, each in numbers.items()}}
    for name, each in (lists or {}).items():
        metadata[f"x.{name}"] = len(each)
    return GgufShape(GgufHeader(metadata, 0, 0, 0, {f"x.{name}": each for name, each in (lists or {}).items()}))


def test_the_demo_model() -> None:
    found = GgufShape(read_header(demo_model()))
    assert found.cell_bytes == 30 * 3 * (64 + 64) * 2
    assert (found.width, found.inner, found.vocabulary, found.context_tokens) == (576, 1536, 49152, 8192)
    assert found.state_bytes == 0


def test_heads_of_each_layer_are_added_up() -> None:
    sizes = {"block_count": 3, "embedding_length": 64, "attention__head_count": 4}
    assert gguf({"attention.head_count_kv": (2, 0, 1)}, **sizes).cell_bytes == 3 * (16 + 16) * 2
    assert gguf(**sizes).cell_bytes == 3 * 4 * (16 + 16) * 2, "no groups: as many as query heads"
    wide = gguf(**sizes, attention__head_count_kv=2, attention__key_length=32, attention__value_length=24)
    assert wide.cell_bytes == 3 * 2 * (32 + 24) * 2


def test_only_layers_without_heads_have_a_state() -> None:
    sizes = {
        "block_count": 3,
        "embedding_length": 64,
        "attention__head_count": 4,
        "ssm__inner_size": 128,
        "ssm__state_size": 16,
        "ssm__group_count": 2,
        "ssm__conv_kernel": 4,
    }
    one = (128 * 16 + 3 * (128 + 2 * 2 * 16)) * 4
    assert gguf({"attention.head_count_kv": (0, 2, 0)}, **sizes).state_bytes == 2 * one
    assert gguf(**sizes).state_bytes == 3 * one


def test_a_header_that_says_nothing_needs_nothing() -> None:
    found = gguf()
    assert (found.cell_bytes, found.state_bytes, found.width, found.vocabulary) == (0, 0, 0, 0)


@pytest.mark.parametrize("capability", ["embeddings", "rerank"])
def test_an_encoder_is_reckoned_in_the_precision_it_is_computed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: str
) -> None:
    config = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 1000, "dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    size, linears, layer = 10 * MIB, 10 * MIB - 4 * 1000 * 64, 6 * 64 + 3 * 128
    model = ModelDescriptor(
        id="tiny",
        modality="text",
        format="safetensors",
        architecture="bert",
        capabilities=frozenset({capability}),
        size=size,
        context_tokens=512,
        generation=1,
        unpacked_size=0,
        quantization="",
        files=(),
        primary=tmp_path,
    )
    runtime = next(one for one in RUNTIMES if one.name == "torch")

    def parts(dtype: str, *, instructions: bool) -> dict[str, int]:
        monkeypatch.setattr("services.text.memory_estimate.has_bfloat16", lambda: instructions)
        settings = load_settings({"ALLM_DTYPE": dtype, "ALLM_BATCH_TOKENS": "1024"}).text
        found = TextMemoryEstimate(settings, TextManager(settings).options)(model, runtime).parts
        return {"weights": found["weights"], "compute": found["compute"] - 800 * 1000 - 32 * MIB}

    exact = {"weights": size, "compute": 1024 * 4 * layer}
    rounded = {"weights": size // 2 + linears // 2, "compute": 1024 * 2 * layer}
    assert parts("auto", instructions=False) == exact
    assert parts("auto", instructions=True) == (exact if capability == "rerank" else rounded)
    assert parts("float32", instructions=True) == exact
    assert parts("bfloat16", instructions=True) == rounded


def test_a_model_that_sees_needs_its_encoder_too(gpt_oss: ModelDescriptor, tmp_path: Path) -> None:
    """As llava-1.5-7b-hf states its sizes: the text model's are transformers' defaults."""
    vision = {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "patch_size": 14}
    text = {"max_position_embeddings": 4096, "model_type": "llama", "vocab_size": 32064}
    config = {"model_type": "llava", "dtype": "float16", "text_config": text, "vision_config": vision}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = ConfigShape(tmp_path)
    assert (shape.width, shape.layers, shape.vocabulary) == (4096, 32, 32064)
    assert shape.cell_numbers == 2 * 32 * 128 * 32
    waiting = 8 * 576 * 4096
    expected = 2 * (576 * (10 * 1024 + 3 * 4096) + waiting) + 336 * 336 * (51 + 3 * 8)
    assert shape.picture_bytes(8, 100_000, 2) == expected
    assert shape.picture_bytes(8, 1000, 2) == expected - 2 * (waiting - 1000 * 4096)
    sees = replace(gpt_oss, architecture="llava", capabilities=frozenset({"chat", "vision"}), quantization="", size=GIB)
    reads = replace(sees, capabilities=frozenset({"chat"}))
    assert reckoned(sees, "torch", packs=False) > reckoned(reads, "torch", packs=False) + 2 * 576 * 4096


def test_vllm_encodes_all_tiles_of_a_picture_together(tmp_path: Path) -> None:
    """As llava-v1.6-vicuna-7b-hf states its sizes."""
    vision = {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "patch_size": 14}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava_next", "vision_config": vision}))
    held = 336 * 336 * 3 * 8 * 5
    one = ConfigShape(tmp_path).picture_bytes(8, 0, 2) - held
    assert ConfigShape(tmp_path).picture_bytes(8, 0, 2, together=True) == 5 * one + 2 * held
