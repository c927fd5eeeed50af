"""The registry: every filter with its reason, and the static table against the real llama.cpp."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from services.errors import Unsupported
from services.models.descriptor import EngineSettings, ModelFacts
from services.models.runtime_choice import CPU_LIMIT_BYTES, GIB, EngineRegistry, Measurement
from services.models.runtimes import RUNTIMES, RuntimeSpec
from tests.case import case

LLAMA_CPP = RUNTIMES[0]
OTHER = RuntimeSpec(
    name="other",
    modality="text",
    formats=frozenset({"gguf"}),
    architectures={"chat": frozenset({"llama", "exotic"}), "embed": frozenset({"llama"})},
    devices=frozenset({"cuda"}),
)


def descriptor(**changes) -> ModelFacts:
    plain = ModelFacts(
        id="m",
        modality="text",
        format="gguf",
        architecture="llama",
        capabilities=frozenset({"chat"}),
        size=1000,
        context_tokens=2048,
    )
    return dataclasses.replace(plain, **changes)


def refusal(registry: EngineRegistry, model: ModelFacts) -> str:
    with pytest.raises(Unsupported) as caught:
        registry.resolve(model)
    assert caught.value.message.startswith("m: ")
    assert caught.value.http_status == 501
    return caught.value.message


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_a_llama_runs_on_llama_cpp_everywhere(device: str) -> None:
    registry = EngineRegistry(device, forced=False)
    assert registry.device == device
    assert registry.resolve(descriptor()).name == LLAMA_CPP.name


def test_first_registered_of_several_is_chosen() -> None:
    assert EngineRegistry("cuda", forced=False, runtimes=(OTHER, LLAMA_CPP)).resolve(descriptor()).name == OTHER.name
    assert (
        EngineRegistry("cuda", forced=False, runtimes=(LLAMA_CPP, OTHER)).resolve(descriptor()).name == LLAMA_CPP.name
    )


def test_a_later_runtime_is_taken_where_the_first_cannot() -> None:
    registry = EngineRegistry("cuda", forced=False, runtimes=(LLAMA_CPP, OTHER))
    assert registry.resolve(descriptor(architecture="exotic")).name == OTHER.name
    assert registry.resolve(descriptor(capabilities=frozenset({"embed"}))).name == OTHER.name
    registry = EngineRegistry("cpu", forced=False, runtimes=(OTHER, LLAMA_CPP))
    assert registry.resolve(descriptor()).name == LLAMA_CPP.name


def test_another_modality_or_format_is_refused() -> None:
    registry = EngineRegistry("cpu", forced=False)
    assert "no runtime here reads audio models in gguf" in refusal(registry, descriptor(modality="audio"))
    assert "no runtime here reads text models in onnx" in refusal(registry, descriptor(format="onnx"))
    assert "no runtime here" in refusal(EngineRegistry("cpu", forced=False, runtimes=()), descriptor())


def test_another_architecture_is_refused_by_name() -> None:
    for architecture in ["bert", "clip", "t5encoder", "whisper", "LLAMA", "nonsense"]:
        with case(architecture=architecture):
            message = refusal(EngineRegistry("cpu", forced=False), descriptor(architecture=architecture))
            assert f"architecture '{architecture}' is not supported by llama_cpp" in message


def test_a_missing_capability_or_device_is_refused() -> None:
    registry = EngineRegistry("cpu", forced=False)
    assert "llama_cpp does not offer embed" in refusal(registry, descriptor(capabilities=frozenset({"embed"})))
    registry = EngineRegistry("cpu", forced=False, runtimes=(OTHER,))
    assert refusal(registry, descriptor()) == "m: other cannot run it on cpu"
    ctranslate2 = descriptor(
        modality="audio",
        format="whisper",
        architecture="whisper_ctranslate2",
        capabilities=frozenset({"transcription"}),
    )
    message = refusal(EngineRegistry("mps", forced=True), ctranslate2)
    assert message.startswith("m: faster_whisper cannot run it on mps (with ALLM_DEVICE=auto each runtime takes ")


def test_an_architecture_may_be_known_for_one_thing_and_not_for_another() -> None:
    embeds, chats = frozenset({"embeddings"}), frozenset({"chat"})
    registry = EngineRegistry("cpu", forced=False)
    for format_, runtime in (("gguf", "llama_cpp"), ("safetensors", "torch")):
        encoder = descriptor(format=format_, architecture="bert", capabilities=embeds)
        assert registry.resolve(encoder).name == runtime
        message = refusal(registry, dataclasses.replace(encoder, capabilities=chats))
        assert message == f"m: architecture 'bert' is not supported by {runtime} for chat"
        assert registry.resolve(dataclasses.replace(encoder, architecture="llama")).name == runtime
        verdicts = registry.explain(dataclasses.replace(encoder, capabilities=chats))
        assert "it does not know the architecture 'bert' for chat" in [verdict.reason for verdict in verdicts]
    both = descriptor(architecture="bert", capabilities=embeds | chats)
    assert "is not supported" in refusal(registry, both)


def test_a_model_that_is_for_nothing_that_is_served_is_refused() -> None:
    registry = EngineRegistry("cpu", forced=False, runtimes=(LLAMA_CPP,))
    useless = descriptor(capabilities=frozenset())
    assert refusal(registry, useless) == "m: llama_cpp does not offer the model's capabilities"
    assert [verdict.able for verdict in registry.explain(useless)] == [False]


def test_without_a_gpu_large_weights_need_an_operators_word() -> None:
    largest, larger = descriptor(size=CPU_LIMIT_BYTES), descriptor(size=CPU_LIMIT_BYTES + GIB // 2)
    automatic = EngineRegistry("cpu", forced=False)
    assert automatic.resolve(largest).name == LLAMA_CPP.name
    message = refusal(automatic, larger)
    assert "needs a GPU" in message
    assert "4.5 GiB" in message
    assert "4 GiB are accepted" in message
    assert "ALLM_DEVICE=cpu" in message
    refusal(automatic, descriptor(size=CPU_LIMIT_BYTES + 1))
    assert EngineRegistry("cpu", forced=True).resolve(larger).name == LLAMA_CPP.name
    assert EngineRegistry("cuda", forced=False).resolve(larger).name == LLAMA_CPP.name


FAST = dataclasses.replace(LLAMA_CPP, name="fast")


def measured(runtime: str, tokens: float, first: float = 0.1, memory: int = 1, device: str = "cpu") -> Measurement:
    return Measurement(
        runtime=runtime, device=device, tokens_per_second=tokens, first_token_seconds=first, peak_memory=memory
    )


def test_the_best_measured_is_taken() -> None:
    registry = EngineRegistry("cpu", forced=False, runtimes=(LLAMA_CPP, FAST))
    assert registry.resolve(descriptor()).name == LLAMA_CPP.name
    assert registry.resolve(descriptor(), [measured("fast", 1.0)]).name == FAST.name, "measured before never measured"
    both = [measured("llama_cpp", 10.0), measured("fast", 20.0)]
    assert registry.resolve(descriptor(), both).name == FAST.name
    assert registry.resolve(descriptor(), [measured("llama_cpp", 10.0), measured("fast", 5.0)]).name == LLAMA_CPP.name
    ties = [measured("llama_cpp", 10.0, first=0.2), measured("fast", 10.0, first=0.1)]
    assert registry.resolve(descriptor(), ties).name == FAST.name
    ties = [measured("llama_cpp", 10.0, memory=2), measured("fast", 10.0, memory=1)]
    assert registry.resolve(descriptor(), ties).name == FAST.name


def test_measurements_of_other_devices_do_not_count() -> None:
    registry = EngineRegistry("cpu", forced=False, runtimes=(LLAMA_CPP, FAST))
    assert registry.resolve(descriptor(), [measured("fast", 1e6, device="cuda")]).name == LLAMA_CPP.name


def test_requested_runtime_is_used_or_refused() -> None:
    registry = EngineRegistry("cpu", forced=False, runtimes=(LLAMA_CPP, FAST, OTHER))
    assert registry.resolve(descriptor(), asked="fast").name == FAST.name
    assert registry.resolve(descriptor(), [measured("llama_cpp", 9.0)], asked="fast").name == FAST.name
    for name in ("other", "nonsense"):
        with pytest.raises(Unsupported, match=f"'{name}' cannot run it here"):
            registry.resolve(descriptor(), asked=name)


def test_every_verdict_has_its_reason() -> None:
    registry = EngineRegistry("cpu", forced=False, runtimes=(OTHER, LLAMA_CPP, FAST))
    verdicts = registry.explain(descriptor(), [measured("fast", 12.34)])
    assert [(verdict.runtime.name, verdict.able, verdict.chosen) for verdict in verdicts] == [
        ("fast", True, True),
        ("llama_cpp", True, False),
        ("other", False, False),
    ]
    assert "12.3 tokens/s" in verdicts[0].reason
    assert "another is preferred" in verdicts[1].reason
    assert verdicts[2].reason == "it does not run on cpu"
    (first, *_) = registry.explain(descriptor())
    assert (first.runtime.name, first.reason) == (
        "llama_cpp",
        "the first registered that can run it; none was measured",
    )
    asked = {verdict.runtime.name: verdict for verdict in registry.explain(descriptor(), asked="fast")}
    assert asked["fast"].chosen
    assert "requested it" in asked["fast"].reason
    assert not asked["llama_cpp"].chosen


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"modality": "audio"}, "it does not read audio models in gguf"),
        ({"format": "safetensors"}, "it does not read text models in safetensors"),
        ({"architecture": "odd"}, "it does not know the architecture 'odd'"),
        ({"capabilities": frozenset({"fly"})}, "it does not offer fly"),
        ({"size": CPU_LIMIT_BYTES + 1}, "needs a GPU"),
    ],
)
def test_explain_covers_refusals_of_resolve(changes: dict[str, object], reason: str) -> None:
    registry = EngineRegistry("cpu", forced=False, runtimes=(LLAMA_CPP,))
    refusal(registry, descriptor(**changes))
    (verdict,) = registry.explain(descriptor(**changes))
    assert not verdict.able
    assert not verdict.chosen
    assert reason in verdict.reason


# --- a runtime that is not installed, and models in pipeline stages

SAFETENSORS = {"format": "safetensors"}
TORCH, VLLM = (next(runtime for runtime in RUNTIMES if runtime.name == name) for name in ("torch", "vllm"))
INSTALLED = (LLAMA_CPP, TORCH, dataclasses.replace(VLLM, missing=""))
STAGES = EngineSettings(pipeline_parallel=2)


def test_missing_runtime_does_not_affect_models_of_others() -> None:
    """Choices and refusals match those without it, except for models that only it could run."""
    others = tuple(runtime for runtime in RUNTIMES if runtime.name != "vllm")
    for device in ("cpu", "cuda", "mps"):
        registries = [EngineRegistry(device, forced=False, runtimes=runtimes) for runtimes in (others, RUNTIMES)]
        for changes in ({}, SAFETENSORS):
            assert len({registry.resolve(descriptor(**changes)).name for registry in registries}) == 1
        for changes in (
            {"format": "onnx"},
            {"architecture": "bert"},
            SAFETENSORS | {"architecture": "paligemma"},
            SAFETENSORS | {"capabilities": frozenset({"embed"})},
            SAFETENSORS | {"quantization": "strange"},
        ):
            before, now = (refusal(registry, descriptor(**changes)) for registry in registries)
            assert now == before
    large = descriptor(**SAFETENSORS, size=CPU_LIMIT_BYTES + 1)
    assert "vllm" not in refusal(EngineRegistry("cpu", forced=False), large), "it would need a GPU, too"


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"architecture": "mixtral"}, "architecture 'mixtral' is not supported by torch"),
        ({"quantization": "awq"}, "weights of llama quantised with 'awq' are not supported by torch"),
    ],
)
def test_model_of_a_missing_runtime_is_refused_with_installation_help(changes: dict[str, object], first: str) -> None:
    model = descriptor(**SAFETENSORS, **changes)
    message = refusal(EngineRegistry("cpu", forced=False), model)
    assert message == f"m: {first}; vllm could run it, but {VLLM.missing}"
    assert "pip install 'allm-server[vllm]'" in message
    assert EngineRegistry("cpu", forced=False, runtimes=INSTALLED).resolve(model).name == "vllm"


def test_missing_runtime_error_explains_the_installation() -> None:
    registry = EngineRegistry("cpu", forced=False)
    with pytest.raises(Unsupported) as caught:
        registry.resolve(descriptor(**SAFETENSORS), asked="vllm")
    assert caught.value.message == f"m: the requested runtime 'vllm' cannot run it here: {VLLM.missing}"
    reasons = {each.runtime.name: each for each in registry.explain(descriptor(**SAFETENSORS), asked="vllm")}
    assert (reasons["vllm"].able, reasons["vllm"].reason) == (False, VLLM.missing)
    with pytest.raises(Unsupported, match="cannot run it here: it does not read text models in gguf"):
        registry.resolve(descriptor(), asked="vllm")


def test_an_installed_one_comes_last_unless_it_was_measured_or_asked_for() -> None:
    registry, model = EngineRegistry("cpu", forced=False, runtimes=INSTALLED), descriptor(**SAFETENSORS)
    assert registry.resolve(model).name == TORCH.name
    assert registry.resolve(model, asked="vllm").name == "vllm"
    assert registry.resolve(model, [measured("torch", 9.0), measured("vllm", 10.0)]).name == "vllm"
    missing = EngineRegistry("cpu", forced=False, runtimes=RUNTIMES)
    assert missing.resolve(model, [measured("torch", 9.0), measured("vllm", 10.0)]).name == TORCH.name


def test_stages_need_a_runtime_that_makes_them() -> None:
    registry, model = EngineRegistry("cuda", forced=False, runtimes=INSTALLED), descriptor(**SAFETENSORS)
    assert registry.resolve(model, engine=STAGES).name == "vllm"
    assert registry.resolve(model, engine=EngineSettings(pipeline_parallel=1)).name == TORCH.name
    with pytest.raises(Unsupported, match="it does not divide models into stages, and 2 are requested"):
        registry.resolve(model, asked="torch", engine=STAGES)
    with pytest.raises(Unsupported, match="m: llama_cpp cannot divide it into stages, and 2 are requested"):
        registry.resolve(descriptor(), engine=STAGES)
    reasons = {each.runtime.name: each.reason for each in registry.explain(model, engine=STAGES)}
    assert "pipeline_parallel" in reasons["torch"]
    with pytest.raises(Unsupported, match=r"torch cannot divide it .*; vllm could run it, but vLLM is not installed"):
        EngineRegistry("cuda", forced=False).resolve(model, engine=STAGES)


def test_speculation_needs_a_runtime_that_guesses() -> None:
    registry, model = EngineRegistry("cpu", forced=False, runtimes=INSTALLED), descriptor(**SAFETENSORS)
    ngram, off = EngineSettings(speculation="ngram"), EngineSettings(speculation="off")
    assert registry.resolve(model, asked="torch", engine=ngram).name == TORCH.name
    assert registry.resolve(model, asked="vllm", engine=off).name == "vllm"
    with pytest.raises(Unsupported, match=r"'vllm' .* does not guess tokens, and speculation=ngram is requested"):
        registry.resolve(model, asked="vllm", engine=ngram)
    with pytest.raises(Unsupported, match="m: vllm does not guess tokens, and speculation=ngram is requested"):
        registry.resolve(descriptor(**SAFETENSORS, architecture="mixtral"), engine=ngram)


def test_runtime_names_are_unique() -> None:
    names = [runtime.name for runtime in RUNTIMES]
    assert len(names) == len(set(names))


@pytest.fixture(scope="module")
def libllama() -> bytes:
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    libraries = sorted((Path(spec.origin).parent / "lib").glob("libllama.*"))
    assert libraries
    return libraries[0].read_bytes()


def test_every_architecture_of_the_table_is_in_the_installed_llama_cpp(libllama: bytes) -> None:
    # Compares whole C strings. The linker may merge a name into a longer one's end, so only the end is exact.
    names = frozenset().union(*LLAMA_CPP.architectures.values())
    missing = [name for name in names if name.encode() + b"\0" not in libllama]
    assert missing == []
    assert b"no-such-architecture\0" not in libllama


@pytest.mark.parametrize("encoder", ["bert", "nomic-bert", "t5encoder", "jina-bert-v2"])
def test_architectures_that_cannot_chat_are_left_out_though_llama_cpp_has_them(libllama: bytes, encoder: str) -> None:
    assert encoder.encode() + b"\0" in libllama
    assert encoder not in LLAMA_CPP.architectures["chat"]


# --- Whisper, in three layouts and two runtimes


def whisper(architecture: str, *capabilities: str) -> ModelFacts:
    able = frozenset(capabilities or {"transcription", "translation"})
    return descriptor(modality="audio", format="whisper", architecture=architecture, capabilities=able)


def test_a_whisper_model_runs_where_its_layout_is_read() -> None:
    for device in ["cpu", "cuda"]:
        for capabilities in [("transcription",), ("transcription", "translation")]:
            with case(device=device, capabilities=capabilities):
                registry = EngineRegistry(device, forced=False)
                assert registry.resolve(whisper("whisper_ctranslate2", *capabilities)).name == "faster_whisper"
                original = whisper("whisper", *capabilities)
                assert registry.resolve(original).name == "whisper", "the first registered"
                assert registry.resolve(original, asked="faster_whisper").name == "faster_whisper", "by conversion"


def test_a_faster_runtime_is_taken_once_it_was_measured() -> None:
    registry = EngineRegistry("cpu", forced=False)
    measured = [
        Measurement(runtime=name, device="cpu", tokens_per_second=speed, first_token_seconds=1.0, peak_memory=0)
        for name, speed in (("whisper", 50.0), ("faster_whisper", 200.0))
    ]
    assert registry.resolve(whisper("whisper"), measured).name == "faster_whisper"


def test_a_converted_whisper_model_names_what_cannot_read_it() -> None:
    registry = EngineRegistry("cpu", forced=False)
    with pytest.raises(Unsupported, match="the requested runtime 'whisper' cannot run it here"):
        registry.resolve(whisper("whisper_ctranslate2"), asked="whisper")
    reasons = {each.runtime.name: each.reason for each in registry.explain(whisper("whisper_ctranslate2"))}
    assert "does not know the architecture 'whisper_ctranslate2'" in reasons["whisper"]
    assert "does not read audio models" in reasons["llama_cpp"]


# --- the device of each runtime


def placed(device: str = "cpu", **own: str) -> tuple[RuntimeSpec, ...]:
    """Returns the runtimes, with their own device and the reason against a GPU where they are named."""
    return tuple(
        dataclasses.replace(one, device=own.get(one.name, device), lacking=own.get(f"{one.name}_lacking", ""))
        for one in RUNTIMES
    )


def test_each_runtime_computes_on_its_own_device() -> None:
    registry = EngineRegistry("vulkan", forced=False, runtimes=placed(llama_cpp="vulkan"))
    large = CPU_LIMIT_BYTES + 1
    assert registry.resolve(descriptor(size=large)).device == "vulkan"
    assert registry.resolve(descriptor(**SAFETENSORS)).device == registry.device_of("torch") == "cpu"
    with pytest.raises(Unsupported, match="m: needs a GPU"):
        registry.resolve(descriptor(**SAFETENSORS, size=large))
    verdicts = {each.runtime.name: each for each in registry.explain(descriptor())}
    assert verdicts["llama_cpp"].runtime.device == "vulkan"


def test_the_refusal_names_the_reason_for_the_missing_gpu() -> None:
    why = "torch 2.13.0+cpu is built without CUDA"
    model = descriptor(**SAFETENSORS, size=CPU_LIMIT_BYTES + 1)
    automatic = EngineRegistry("cpu", forced=False, runtimes=placed(torch_lacking=why))
    assert refusal(automatic, model).endswith(f"(ALLM_DEVICE=cpu lifts the limit). torch has none: {why}")
    assert automatic.resolve(descriptor(**SAFETENSORS)).device == "cpu"
    forced = EngineRegistry("cuda", forced=True, runtimes=placed("cuda", torch_lacking=why))
    assert refusal(forced, descriptor(**SAFETENSORS)).startswith(f"m: torch cannot compute on cuda here: {why}")
    assert "does not run on vulkan" in " ".join(
        each.reason for each in EngineRegistry("vulkan", forced=True).explain(descriptor(**SAFETENSORS))
    )


def test_measurements_count_on_the_device_of_their_runtime() -> None:
    registry = EngineRegistry("cuda", forced=False, runtimes=(*placed("cpu", llama_cpp="cuda"), FAST))
    figures = [measured("llama_cpp", 9.0, device="cuda"), measured("fast", 5.0, device="cuda")]
    assert registry.resolve(descriptor(), figures).name == "llama_cpp"
    elsewhere = [measured("llama_cpp", 1.0, device="cpu"), measured("fast", 5.0, device="cuda")]
    assert registry.resolve(descriptor(), elsewhere).name == "fast"


def test_a_runtime_with_a_gpu_precedes_one_without() -> None:
    with_gpu = dataclasses.replace(OTHER, device="cuda")
    registry = EngineRegistry("cuda", forced=False, runtimes=(dataclasses.replace(LLAMA_CPP, device="cpu"), with_gpu))
    assert registry.resolve(descriptor()).name == "other"
