"""The runtime registry: a static table of the models that each runtime can run, and the ranking that chooses one.

Runtimes are not discovered: each is one entry here and one module in its service's `engine/runtimes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from services.errors import Unsupported
from services.models.descriptor import AS_THE_SERVICE_DOES, EngineSettings, ModelFacts
from services.models.vllm_models import VLLM_DECODERS, VLLM_MISSING, VLLM_QUANTIZATIONS

GIB = 1024**3
CPU_LIMIT_BYTES = 4 * GIB  # most weights that `ALLM_DEVICE=auto` accepts without a GPU
CPU = "cpu"
DEVICES = ("cuda", "vulkan", "mps", CPU)  # best first


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A runtime and the models that it supports."""

    name: str
    modality: str
    formats: frozenset[str]
    architectures: Mapping[str, frozenset[str]]  # capability -> supported architectures
    devices: frozenset[str]
    quantizations: frozenset[str] = frozenset()  # supported `architecture:quantization` of quantised safetensors
    pipelines: bool = False  # can divide a model's layers into stages, also on several machines
    missing: str = ""  # if it is not installed here: the reason and the remedy; empty: it is installed
    device: str = ""  # one of DEVICES, on which it computes here; empty: not determined
    lacking: str = ""  # why it cannot use the requested device or, with `auto`, any GPU
    shares_host: bool = False  # whether the memory of its GPU is the host's
    packs: bool = False  # whether its GPU computes the experts of gpt-oss packed in MXFP4

    @property
    def gpu(self) -> bool:
        """True if it computes on a GPU here."""
        return self.device not in ("", CPU)

    @property
    def capabilities(self) -> frozenset[str]:
        """Its capabilities, over all architectures."""
        return frozenset(self.architectures)

    def offers(self, model: ModelFacts) -> bool:
        """True if it has all capabilities of the model. Some models have none that are known."""
        return bool(model.capabilities) and model.capabilities <= self.capabilities

    def knows(self, model: ModelFacts) -> bool:
        """True if it supports the model's architecture for all of the model's capabilities."""
        return all(model.architecture in self.architectures.get(one, ()) for one in model.capabilities)

    def reads(self, model: ModelFacts) -> bool:
        """True if it can compute with the model's quantised weights."""
        return not model.quantization or f"{model.architecture}:{model.quantization}" in self.quantizations


# The decoder architectures of the pinned llama.cpp (src/llama-arch.cpp); a test compares the list with the library.
# Left out: encoders, vision and audio parts, draft and diffusion models, which cannot chat.
_LLAMA_CPP_DECODERS = frozenset(
    """
    llama llama4 deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bloom stablelm qwen qwen2 qwen2moe
    qwen3 qwen3moe qwen3next qwen35 qwen35moe phi2 phi3 phimoe plamo plamo2 plamo3 codeshell orion internlm2 minicpm
    minicpm3 gemma gemma2 gemma3 gemma3n gemma4 starcoder2 mamba mamba2 jamba falcon-h1 xverse command-r cohere2
    cohere2moe dbrx olmo olmo2 olmoe openelm arctic deepseek deepseek2 deepseek32 chatglm glm4 glm4moe bitnet jais jais2
    nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe rwkv6 rwkv6qwen2 rwkv7 arwkv7 granite granitemoe
    granitehybrid plm bailingmoe bailingmoe2 dots1 arcee afmoe ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense smollm3
    gpt-oss lfm2 lfm2moe smallthinker seed_oss grovemoe apertus minimax-m2 mistral3 mistral4 kimi-linear
    """.split()  # noqa: SIM905 (a hundred quoted words are harder to read)
)

# Encoder architectures, which only embed. A decoder embeds if its header names a pooling type; many families never do.
LLAMA_CPP_ENCODERS = frozenset(
    """
    bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert gemma-embedding
    """.split()  # noqa: SIM905
)

# model_type of config.json, as transformers itself defines it (a model's own code is never run).
_TORCH_DECODERS = frozenset("llama qwen2 qwen3 qwen3_moe glm glm4 glm4_moe gpt_oss nemotron_h".split())  # noqa: SIM905
_TORCH_ENCODERS = frozenset(
    """
    albert bert camembert deberta deberta-v2 distilbert electra ernie eurobert modernbert mpnet nomic_bert rembert
    roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl
    """.split()  # noqa: SIM905
)
_TORCH_EMBEDDING_DECODERS = frozenset("gemma gemma2 gemma3_text llama mistral phi3 qwen2 qwen3".split())  # noqa: SIM905

# `whisper`: OpenAI's checkpoints and transformers' safetensors; `whisper_ctranslate2`: folders that CTranslate2 wrote.
_WHISPER = frozenset({"whisper"})
_WHISPER_ANY = frozenset({"whisper", "whisper_ctranslate2"})

# Classes of diffusers' latent pipelines that take one prompt or one image, as model_index.json names them.
# Left out: ControlNet and similar, cascades of pipelines, pixel space, and video.
_DIFFUSERS = frozenset(
    """
    StableDiffusionPipeline StableDiffusionImg2ImgPipeline StableDiffusionInpaintPipeline StableDiffusionXLPipeline
    StableDiffusionXLImg2ImgPipeline StableDiffusionXLInpaintPipeline StableDiffusion3Pipeline FluxPipeline
    LatentConsistencyModelPipeline PixArtAlphaPipeline PixArtSigmaPipeline SanaPipeline HunyuanDiTPipeline
    AuraFlowPipeline LuminaPipeline Lumina2Pipeline ChromaPipeline CogView3PlusPipeline CogView4Pipeline
    QwenImagePipeline ZImagePipeline OvisImagePipeline
    """.split()  # noqa: SIM905
)

RUNTIMES = (
    Runtime(
        name="llama_cpp",
        modality="text",
        formats=frozenset({"gguf"}),
        architectures={"chat": _LLAMA_CPP_DECODERS, "embeddings": _LLAMA_CPP_DECODERS | LLAMA_CPP_ENCODERS},
        devices=frozenset({"cpu", "cuda", "vulkan", "mps"}),
    ),
    Runtime(
        name="torch",
        modality="text",
        formats=frozenset({"safetensors"}),
        architectures={"chat": _TORCH_DECODERS, "embeddings": _TORCH_ENCODERS | _TORCH_EMBEDDING_DECODERS},
        devices=frozenset({"cpu", "cuda", "mps"}),
        quantizations=frozenset({"gpt_oss:mxfp4"}),
    ),
    # The last text runtime: without measurements it is chosen only for models that the others do not support. It counts
    # as missing until its service has detected it (services/text/runtime_availability.py).
    Runtime(
        name="vllm",
        modality="text",
        formats=frozenset({"safetensors"}),
        architectures={"chat": VLLM_DECODERS},
        devices=frozenset({"cpu", "cuda"}),
        quantizations=VLLM_QUANTIZATIONS,
        pipelines=True,
        missing=VLLM_MISSING,
    ),
    Runtime(
        name="whisper",
        modality="audio",
        formats=frozenset({"whisper"}),
        architectures={"transcription": _WHISPER, "translation": _WHISPER},
        devices=frozenset({"cpu", "cuda", "mps"}),
    ),
    Runtime(
        name="faster_whisper",
        modality="audio",
        formats=frozenset({"whisper"}),
        architectures={"transcription": _WHISPER_ANY, "translation": _WHISPER_ANY},
        devices=frozenset({"cpu", "cuda"}),  # CTranslate2 has no Metal: on a Mac it uses the processor
    ),
    Runtime(
        name="diffusers",
        modality="image",
        formats=frozenset({"diffusers"}),
        architectures={"image": _DIFFUSERS},
        devices=frozenset({"cpu", "cuda", "mps"}),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measured performance of a model with one runtime on one device."""

    runtime: str
    device: str
    tokens_per_second: float  # of one request
    first_token_seconds: float
    peak_memory: int  # bytes; 0: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The registry's verdict on one runtime for one model."""

    runtime: Runtime
    able: bool
    chosen: bool
    reason: str


class EngineRegistry:
    """Resolves models to runtimes.

    `device`: one of DEVICES, the best of this service, and that of runtimes whose own device is not determined;
    `forced`: an operator chose it. `runtimes`: in the order of the table.
    """

    def __init__(self, device: str, *, forced: bool, runtimes: tuple[Runtime, ...] = RUNTIMES) -> None:
        self.device = device
        self.forced = forced
        self.runtimes = tuple(one if one.device else replace(one, device=device) for one in runtimes)

    def device_of(self, name: str) -> str:
        """Returns the device on which the runtime of that name computes; the service's for an unknown name."""
        return next((one.device for one in self.runtimes if one.name == name), self.device)

    def resolve(
        self,
        model: ModelFacts,
        measured: Iterable[Measurement] = (),
        asked: str = "",
        engine: EngineSettings = AS_THE_SERVICE_DOES,
    ) -> Runtime:
        """Chooses the runtime for a model: the requested one, else the best measured, else the first that can run it.

        Raises:
            Unsupported: no runtime can; the message names the filter that failed last.
        """
        objections = {runtime.name: self._objection(runtime, model, engine) for runtime in self.runtimes}
        able = [runtime for runtime in self.runtimes if not objections[runtime.name]]
        if asked and not any(runtime.name == asked for runtime in able):
            why = objections.get(asked) or f"there are {', '.join(objections) or 'no runtimes'}"
            raise Unsupported(f"{model.id}: the requested runtime {asked!r} cannot run it here: {why}")
        if not able:
            raise Unsupported(self._refusal(model, engine))
        return next(runtime for runtime in self._ranked(able, measured) if not asked or runtime.name == asked)

    def explain(
        self,
        model: ModelFacts,
        measured: Iterable[Measurement] = (),
        asked: str = "",
        engine: EngineSettings = AS_THE_SERVICE_DOES,
    ) -> list[Verdict]:
        """Returns the verdict on every runtime, best first."""
        figures = self._figures(measured)
        objections = {runtime.name: self._objection(runtime, model, engine) for runtime in self.runtimes}
        able = self._ranked([runtime for runtime in self.runtimes if not objections[runtime.name]], figures.values())
        chosen = next((runtime for runtime in able if not asked or runtime.name == asked), None)
        verdicts = [
            Verdict(
                runtime=runtime,
                able=True,
                chosen=runtime is chosen,
                reason=self._reason(figures.get(runtime.name), runtime is chosen, asked),
            )
            for runtime in able
        ]
        return verdicts + [
            Verdict(runtime=runtime, able=False, chosen=False, reason=objections[runtime.name])
            for runtime in self.runtimes
            if objections[runtime.name]
        ]

    def _objection(self, runtime: Runtime, model: ModelFacts, engine: EngineSettings) -> str:
        """Returns why a runtime cannot run a model; empty if it can. `missing` applies only if all else fits."""
        return self._inability(runtime, model, engine) or runtime.missing

    def _inability(self, runtime: Runtime, model: ModelFacts, engine: EngineSettings) -> str:
        """Returns why a runtime could not run a model even if it were installed; empty if it could."""
        if runtime.modality != model.modality or model.format not in runtime.formats:
            return f"it does not read {model.modality} models in {model.format}"
        if not runtime.offers(model):
            return f"it does not offer {_purpose(model.capabilities - runtime.capabilities)}"
        if not runtime.knows(model):
            return f"it does not know the architecture {model.architecture!r}{_for(model, [runtime])}"
        if not runtime.reads(model):
            return f"it does not read weights of {model.architecture} quantised with {model.quantization!r}"
        if engine.pipeline_parallel > 1 and not runtime.pipelines:
            return f"it does not divide models into stages, and {_stages(engine)}"
        return self._inability_here(runtime, model)

    def _inability_here(self, runtime: Runtime, model: ModelFacts) -> str:
        """Returns why a runtime that supports the model cannot run it on this machine; empty if it can."""
        if runtime.device not in runtime.devices:
            return f"it does not run on {runtime.device}"
        if runtime.gpu and runtime.lacking:
            return f"{runtime.name} cannot compute on {runtime.device} here: {runtime.lacking}"
        if not runtime.gpu and not self.forced and _memory(model) > CPU_LIMIT_BYTES:
            return _needs_gpu(model, runtime)
        return ""

    def _refusal(self, model: ModelFacts, engine: EngineSettings) -> str:
        """Explains why no runtime can run a model: the last filter that any installed runtime reached, then the missing
        runtimes that could run it.
        """
        here = self._refusal_here(model, engine)
        others = [runtime for runtime in self.runtimes if runtime.missing]
        able = [runtime for runtime in others if not self._inability(runtime, model, engine)]
        return "; ".join([here, *(f"{runtime.name} could run it, but {runtime.missing}" for runtime in able)])

    def _refusal_here(self, model: ModelFacts, engine: EngineSettings) -> str:
        left = [runtime for runtime in self.runtimes if runtime.modality == model.modality and not runtime.missing]
        left = [runtime for runtime in left if model.format in runtime.formats]
        if not left:
            return f"{model.id}: no runtime here reads {model.modality} models in {model.format}"
        names = ", ".join(runtime.name for runtime in left)
        able = [runtime for runtime in left if runtime.offers(model)]
        if not able:
            return f"{model.id}: {names} does not offer {_purpose(model.capabilities)}"
        left = [runtime for runtime in able if runtime.knows(model)]
        if not left:
            what = f"architecture {model.architecture!r} is not supported by {names}{_for(model, able)}"
            return f"{model.id}: {what}"
        left = [runtime for runtime in left if runtime.reads(model)]
        if not left:
            quantised = f"weights of {model.architecture} quantised with {model.quantization!r}"
            return f"{model.id}: {quantised} are not supported by {names}"
        return self._refusal_of_place(model, engine, left, names)

    def _refusal_of_place(self, model: ModelFacts, engine: EngineSettings, left: list[Runtime], names: str) -> str:
        """Explains why the runtimes in `left`, which can read the model, cannot run it on this machine."""
        if engine.pipeline_parallel > 1:
            left = [runtime for runtime in left if runtime.pipelines]
            if not left:
                return f"{model.id}: {names} cannot divide it into stages, and {_stages(engine)}"
        if not any(runtime.device in runtime.devices for runtime in left):
            return f"{model.id}: {names} cannot run it on {left[0].device}"
        reasons = {runtime.name: self._inability_here(runtime, model) for runtime in left}
        if len(set(reasons.values())) == 1:
            return f"{model.id}: {next(iter(reasons.values()))}"
        return f"{model.id}: " + "; ".join(f"{name}: {why}" for name, why in reasons.items())

    def _figures(self, measured: Iterable[Measurement]) -> dict[str, Measurement]:
        return {figure.runtime: figure for figure in measured if figure.device == self.device_of(figure.runtime)}

    def _ranked(self, able: list[Runtime], measured: Iterable[Measurement]) -> list[Runtime]:
        """Sorts runtimes: measured ones by tokens/s, first token and memory, then those with a GPU, then the others."""
        figures = self._figures(measured)

        def rank(runtime: Runtime) -> tuple[float, float, float, bool]:
            if figure := figures.get(runtime.name):
                return -figure.tokens_per_second, figure.first_token_seconds, figure.peak_memory, False
            return 0.0, 0.0, 0.0, not runtime.gpu

        return sorted(able, key=rank)  # stable

    def _reason(self, figure: Measurement | None, chosen: bool, asked: str) -> str:
        what = f"{figure.tokens_per_second:.1f} tokens/s" if figure else "not measured"
        if not chosen:
            return f"it could run it ({what}); another is preferred"
        if asked:
            return f"an operator requested it ({what})"
        return f"the best measured: {what}" if figure else "the first registered that can run it; none was measured"


def _needs_gpu(model: ModelFacts, runtime: Runtime) -> str:
    dequantised = f" dequantised from {model.size / GIB:.1f} GiB in {model.quantization}" if model.unpacked_size else ""
    why = f". {runtime.name} has none: {runtime.lacking}" if runtime.lacking else ""
    return (
        f"needs a GPU: its weights take {_memory(model) / GIB:.1f} GiB{dequantised}, without a GPU "
        f"{CPU_LIMIT_BYTES / GIB:.0f} GiB are accepted (ALLM_DEVICE=cpu lifts the limit){why}"
    )


def _memory(model: ModelFacts) -> int:
    """Returns the bytes of the weights on a CPU, which computes only with dequantised numbers."""
    return max(model.size, model.unpacked_size)


def _stages(engine: EngineSettings) -> str:
    return f"{engine.pipeline_parallel} are requested (pipeline_parallel)"


def _purpose(capabilities: frozenset[str]) -> str:
    return ", ".join(sorted(capabilities)) or "the model's capabilities"


def _for(model: ModelFacts, runtimes: Iterable[Runtime]) -> str:
    """Names the model's capabilities if a runtime supports its architecture for other ones; else empty."""
    known = any(model.architecture in names for runtime in runtimes for names in runtime.architectures.values())
    return f" for {', '.join(sorted(model.capabilities))}" if known else ""
