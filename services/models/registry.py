"""Which runtime can run a model: a static table, looked through when a model is registered or loaded.

There is no discovery of any kind: a runtime is one entry here and one module in its service's `engine/runtimes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.errors import Unsupported
from services.models.descriptor import AS_THE_SERVICE_DOES, EngineSettings, ModelFacts
from services.models.vllm_models import VLLM_DECODERS, VLLM_MISSING, VLLM_QUANTIZATIONS

GIB = 1024**3
CPU_LIMIT_BYTES = 4 * GIB  # weights that `ALLM_DEVICE=auto` accepts without a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A way to run models."""

    name: str
    modality: str
    formats: frozenset[str]
    architectures: Mapping[str, frozenset[str]]  # for each of its capabilities, those that it knows
    devices: frozenset[str]
    quantizations: frozenset[str] = frozenset()  # `architecture:quantization` of quantised safetensors that it reads
    pipelines: bool = False  # whether it divides a model's layers into stages, which may be on several machines
    missing: str = ""  # why it runs nothing here, where it is not installed, and what to do about it

    @property
    def capabilities(self) -> frozenset[str]:
        """What it can do with one architecture or another."""
        return frozenset(self.architectures)

    def offers(self, model: ModelFacts) -> bool:
        """Whether it can do what the model is for. Of some models nothing is known that they would be for."""
        return bool(model.capabilities) and model.capabilities <= self.capabilities

    def knows(self, model: ModelFacts) -> bool:
        """Whether it knows the model's architecture, for everything that the model is to do."""
        return all(model.architecture in self.architectures.get(one, ()) for one in model.capabilities)

    def reads(self, model: ModelFacts) -> bool:
        """Whether it can compute with the model's weights as they are quantised."""
        return not model.quantization or f"{model.architecture}:{model.quantization}" in self.quantizations


# The decoder architectures of the pinned llama.cpp (src/llama-arch.cpp); a test holds the list against the library.
# Left out: encoders, vision and audio parts, draft and diffusion models, which do not chat.
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

# Those that only embed. A decoder embeds where its header says how to pool; whole families have none that does.
_LLAMA_CPP_ENCODERS = frozenset(
    """
    bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert gemma-embedding
    """.split()  # noqa: SIM905
)

# model_type of config.json, as transformers' own definitions have it (no code of a model's own is ever run).
_TORCH_DECODERS = frozenset("llama qwen2 qwen3 qwen3_moe glm glm4 glm4_moe gpt_oss nemotron_h".split())  # noqa: SIM905
_TORCH_ENCODERS = frozenset(
    """
    albert bert camembert deberta deberta-v2 distilbert electra ernie eurobert modernbert mpnet nomic_bert rembert
    roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl
    """.split()  # noqa: SIM905
)
_TORCH_EMBEDDING_DECODERS = frozenset("gemma gemma2 gemma3_text llama mistral phi3 qwen2 qwen3".split())  # noqa: SIM905

# OpenAI's checkpoints and transformers' safetensors, and the folders that CTranslate2 converts them to.
_WHISPER = frozenset({"whisper"})
_WHISPER_ANY = frozenset({"whisper", "whisper_ctranslate2"})

# Classes of diffusers' pipelines, as model_index.json names them: those that draw of one prompt, or over one
# image, in latents. Left out: ControlNet and its like, cascades of pipelines, pixel space, and video.
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
        architectures={"chat": _LLAMA_CPP_DECODERS, "embeddings": _LLAMA_CPP_DECODERS | _LLAMA_CPP_ENCODERS},
        devices=frozenset({"cpu", "cuda", "mps"}),
    ),
    Runtime(
        name="torch",
        modality="text",
        formats=frozenset({"safetensors"}),
        architectures={"chat": _TORCH_DECODERS, "embeddings": _TORCH_ENCODERS | _TORCH_EMBEDDING_DECODERS},
        devices=frozenset({"cpu", "cuda", "mps"}),
        quantizations=frozenset({"gpt_oss:mxfp4"}),
    ),
    # After the others: without a measurement it is taken for what they do not know. Whether it is here, its service
    # finds out (services/text/vllm_availability.py); until then it is not.
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
    # Neither computes on mps: there they use the CPU.
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
        devices=frozenset({"cpu", "cuda", "mps"}),
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
    """What was measured of a model under one runtime on one device."""

    runtime: str
    device: str
    tokens_per_second: float  # of one request
    first_token_seconds: float
    peak_memory: int  # bytes; 0: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the registry says of one runtime for one model."""

    runtime: Runtime
    able: bool
    chosen: bool
    reason: str


class EngineRegistry:
    """Resolves models to runtimes. `device` is where models run here; `forced` whether an operator chose it."""

    def __init__(self, device: str, *, forced: bool, runtimes: tuple[Runtime, ...] = RUNTIMES) -> None:
        self._device = device
        self._forced = forced
        self._runtimes = runtimes

    @property
    def device(self) -> str:
        """cuda, mps or cpu."""
        return self._device

    @property
    def forced(self) -> bool:
        """Whether an operator chose the device."""
        return self._forced

    @property
    def runtimes(self) -> tuple[Runtime, ...]:
        """All runtimes, in the order of the table."""
        return self._runtimes

    def resolve(
        self,
        model: ModelFacts,
        measured: Iterable[Measurement] = (),
        asked: str = "",
        engine: EngineSettings = AS_THE_SERVICE_DOES,
    ) -> Runtime:
        """The runtime for a model: the one asked for, else the best measured, else the first registered that can.

        Raises:
            Unsupported: none can; the message says which filter failed last.
        """
        objections = {runtime.name: self._objection(runtime, model, engine) for runtime in self._runtimes}
        able = [runtime for runtime in self._runtimes if not objections[runtime.name]]
        if asked and not any(runtime.name == asked for runtime in able):
            why = objections.get(asked) or f"there are {', '.join(objections) or 'no runtimes'}"
            raise Unsupported(f"{model.id}: the runtime {asked!r} that was asked for cannot run it here: {why}")
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
        """What `resolve` thinks of every runtime, best first."""
        figures = self._figures(measured)
        objections = {runtime.name: self._objection(runtime, model, engine) for runtime in self._runtimes}
        able = self._ranked([runtime for runtime in self._runtimes if not objections[runtime.name]], figures.values())
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
            for runtime in self._runtimes
            if objections[runtime.name]
        ]

    def _objection(self, runtime: Runtime, model: ModelFacts, engine: EngineSettings) -> str:
        """Why a runtime cannot run a model; empty if it can. That it is missing counts where it could otherwise."""
        return self._inability(runtime, model, engine) or runtime.missing

    def _inability(self, runtime: Runtime, model: ModelFacts, engine: EngineSettings) -> str:
        """Why a runtime could not run a model even if it were installed; empty if it could."""
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
        """Why a runtime that knows the model could not run it on this machine; empty if it could."""
        if self._device not in runtime.devices:
            return f"it does not run on {self._device}"
        if self._device == "cpu" and not self._forced and _memory(model) > CPU_LIMIT_BYTES:
            return self._needs_gpu(model)
        return ""

    def _refusal(self, model: ModelFacts, engine: EngineSettings) -> str:
        """Why no runtime can run a model: what the last filter that any runtime reached says, of those that are here;
        then which others could.
        """
        here = self._refusal_here(model, engine)
        others = [runtime for runtime in self._runtimes if runtime.missing]
        able = [runtime for runtime in others if not self._inability(runtime, model, engine)]
        return "; ".join([here, *(f"{runtime.name} could run it, but {runtime.missing}" for runtime in able)])

    def _refusal_here(self, model: ModelFacts, engine: EngineSettings) -> str:
        left = [runtime for runtime in self._runtimes if runtime.modality == model.modality and not runtime.missing]
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
        """The same of runtimes that can read the model: `left`, of those with `names`."""
        if engine.pipeline_parallel > 1:
            left = [runtime for runtime in left if runtime.pipelines]
            if not left:
                return f"{model.id}: {names} cannot divide it into stages, and {_stages(engine)}"
        if not any(self._device in runtime.devices for runtime in left):
            return f"{model.id}: {names} cannot run it on {self._device}"
        return f"{model.id}: {self._needs_gpu(model)}"

    def _needs_gpu(self, model: ModelFacts) -> str:
        dequantised = f" dequantised from {model.quantization}" if model.unpacked_size else ""
        return (
            f"needs a GPU: its weights take {_memory(model) / GIB:.1f} GiB{dequantised}, without a GPU "
            f"{CPU_LIMIT_BYTES / GIB:.0f} GiB are accepted (ALLM_DEVICE=cpu lifts the limit)"
        )

    def _figures(self, measured: Iterable[Measurement]) -> dict[str, Measurement]:
        return {figure.runtime: figure for figure in measured if figure.device == self._device}

    def _ranked(self, able: list[Runtime], measured: Iterable[Measurement]) -> list[Runtime]:
        """Measured ones first, by tokens/s, then first token, then memory; the others as they are registered."""
        figures = self._figures(measured)

        def rank(runtime: Runtime) -> tuple[float, float, float]:
            if figure := figures.get(runtime.name):
                return -figure.tokens_per_second, figure.first_token_seconds, figure.peak_memory
            return 0.0, 0.0, 0.0

        return sorted(able, key=rank)  # stable

    def _reason(self, figure: Measurement | None, chosen: bool, asked: str) -> str:
        what = f"{figure.tokens_per_second:.1f} tokens/s" if figure else "not measured"
        if not chosen:
            return f"it could run it ({what}); another is preferred"
        if asked:
            return f"an operator asked for it ({what})"
        return f"the best measured: {what}" if figure else "the first registered that can run it; none was measured"


def _memory(model: ModelFacts) -> int:
    """Bytes of the weights on a CPU, which computes with plain numbers only."""
    return max(model.size, model.unpacked_size)


def _stages(engine: EngineSettings) -> str:
    return f"it was asked for {engine.pipeline_parallel} (pipeline_parallel)"


def _purpose(capabilities: frozenset[str]) -> str:
    return ", ".join(sorted(capabilities)) or "what the model is made for"


def _for(model: ModelFacts, runtimes: Iterable[Runtime]) -> str:
    """What an architecture is not known for, where it is known for something else."""
    known = any(model.architecture in names for runtime in runtimes for names in runtime.architectures.values())
    return f" for {', '.join(sorted(model.capabilities))}" if known else ""
