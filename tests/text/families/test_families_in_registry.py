"""The registry's rules for safetensors: architectures that torch runs, and formats of their weights."""

from __future__ import annotations

import dataclasses

import pytest

from services.errors import Unsupported
from services.models.descriptor import EngineSettings, ModelFacts
from services.models.runtime_choice import CPU_LIMIT_BYTES, GIB, EngineRegistry
from services.models.runtimes import RUNTIMES
from services.models.wire import desired_message, model_message, read_desired
from tests.catalog.desired_model import ARTIFACT, desired
from tests.late import late

vision_families = late("services.text.engine.runtimes.torch.vision_families")
modeling_auto = late("transformers.models.auto.modeling_auto")

(TORCH,) = [runtime for runtime in RUNTIMES if runtime.name == "torch"]
MODEL = ModelFacts(
    id="m",
    modality="text",
    format="safetensors",
    architecture="gpt_oss",
    capabilities=frozenset({"chat"}),
    size=1000,
    context_tokens=2048,
)

SEES = frozenset({"chat", "vision"})


def resolved(device: str = "cpu", *, forced: bool = False, **changes: object) -> str:
    return EngineRegistry(device, forced=forced).resolve(dataclasses.replace(MODEL, **changes)).name


def refusal(device: str = "cpu", **changes: object) -> str:
    """Returns the error of resolve and torch's own reason from explain."""
    facts, registry = dataclasses.replace(MODEL, **changes), EngineRegistry(device, forced=False)
    with pytest.raises(Unsupported) as caught:
        registry.resolve(facts)
    (verdict,) = [verdict for verdict in registry.explain(facts) if verdict.runtime.name == "torch"]
    assert not verdict.able
    assert verdict.reason
    return f"{caught.value.message}; {verdict.reason}"


@pytest.mark.parametrize(
    "architecture",
    ["llama", "qwen2", "qwen3", "qwen3_moe", "glm", "glm4", "glm4_moe", "gpt_oss", "nemotron_h"],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_families_run_on_torch(architecture: str, device: str) -> None:
    assert resolved(device, architecture=architecture) == "torch"


@pytest.mark.parametrize("architecture", sorted(TORCH.architectures["chat"]))
def test_transformers_has_every_architecture_of_the_table(architecture: str) -> None:
    sees = architecture in TORCH.architectures["vision"]
    assert architecture in (
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        if sees
        else modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    )


def test_torch_sees_with_the_architectures_of_the_table() -> None:
    assert set(vision_families.FAMILIES) == TORCH.architectures["vision"]
    assert resolved(architecture="llava", capabilities=SEES) == "torch"


@pytest.mark.parametrize("architecture", ["mllama", "paligemma", "pixtral", "llama"])
def test_others_do_not_see(architecture: str) -> None:
    message = refusal(architecture=architecture, capabilities=SEES)
    assert f"architecture {architecture!r} is not supported by torch for chat, vision" in message


@pytest.mark.parametrize(
    "architecture", ["gpt-oss", "paligemma", "mllama", "gemma3n", "mamba", "t5", "bert", "nonsense"]
)
def test_others_are_unsupported_by_name(architecture: str) -> None:
    assert f"architecture {architecture!r} is not supported by torch" in refusal(architecture=architecture)


def test_mxfp4_is_read_where_it_is_published() -> None:
    assert resolved(quantization="mxfp4", unpacked_size=4000) == "torch"
    message = refusal(architecture="llama", quantization="mxfp4")
    assert "weights of llama quantised with 'mxfp4' are not supported by torch" in message


@pytest.mark.parametrize("method", ["fp8", "awq", "gptq", "bitsandbytes", "compressed-tensors", "f8_e4m3"])
def test_other_quantisations_are_unsupported_by_method(method: str) -> None:
    message = refusal(quantization=method)
    assert f"weights of gpt_oss quantised with {method!r} are not supported by torch" in message
    assert f"it does not read weights of gpt_oss quantised with {method!r}" in message


def test_without_a_gpu_packed_weights_count_as_what_they_become() -> None:
    packed = {"quantization": "mxfp4", "size": CPU_LIMIT_BYTES // 2, "unpacked_size": CPU_LIMIT_BYTES + GIB}
    message = refusal(**packed)
    sizes = "5.0 GiB dequantised from 2.0 GiB in mxfp4"
    assert f"needs a GPU: its weights take {sizes}, without a GPU 4 GiB are accepted" in message
    assert resolved("cuda", **packed) == "torch"
    assert resolved(forced=True, **packed) == "torch"
    assert resolved(**(packed | {"unpacked_size": CPU_LIMIT_BYTES})) == "torch"


def test_the_catalog_and_the_services_inform_each_other() -> None:
    facts = dataclasses.replace(MODEL, quantization="mxfp4", unpacked_size=4000)
    model = desired("m", facts=facts)
    message = desired_message(model, model_message(model))
    assert (message.model.quantization, message.model.unpacked_bytes) == ("mxfp4", 4000)
    assert read_desired(message).facts == facts
    engine = EngineSettings(tensor_parallel=2, pipeline_parallel=3, kv_tokens=2**33, dtype="float16")
    run = dataclasses.replace(model, runtime="vllm", engine=engine)
    read_run = read_desired(desired_message(run, model_message(run)))
    assert (read_run.runtime, read_run.engine) == ("vllm", engine)
    cache = dataclasses.replace(ARTIFACT, facts=facts)
    message = desired_message(desired("m", artifacts=(cache,)), model_message(model))
    (read,) = read_desired(message).artifacts
    assert (read.facts.quantization, read.facts.unpacked_size) == ("mxfp4", 4000)
