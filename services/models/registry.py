"""Which runtime can run a model: a static table, looked through when a model is registered or loaded.

There is no discovery of any kind: a runtime is one entry here and one module in its service's `engine/runtimes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.models.descriptor import ModelFacts
from services.rpc.errors import Unsupported

GIB = 1024**3
CPU_LIMIT_BYTES = 4 * GIB  # weights that `ALLM_DEVICE=auto` accepts without a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A way to run models."""

    name: str
    modality: str
    formats: frozenset[str]
    architectures: frozenset[str]
    capabilities: frozenset[str]
    devices: frozenset[str]


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

RUNTIMES = (
    Runtime(
        name="llama_cpp",
        modality="text",
        formats=frozenset({"gguf"}),
        architectures=_LLAMA_CPP_DECODERS,
        capabilities=frozenset({"chat"}),
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

    def resolve(self, model: ModelFacts, measured: Iterable[Measurement] = (), asked: str = "") -> Runtime:
        """The runtime for a model: the one asked for, else the best measured, else the first registered that can.

        Raises:
            Unsupported: none can; the message says which filter failed last.
        """
        able = [runtime for runtime in self._runtimes if not self._objection(runtime, model)]
        if asked and not any(runtime.name == asked for runtime in able):
            raise Unsupported(f"{model.id}: the runtime {asked!r} that was asked for cannot run it here")
        if not able:
            raise Unsupported(self._refusal(model))
        return next(runtime for runtime in self._ranked(able, measured) if not asked or runtime.name == asked)

    def explain(self, model: ModelFacts, measured: Iterable[Measurement] = (), asked: str = "") -> list[Verdict]:
        """What `resolve` thinks of every runtime, best first."""
        figures = self._figures(measured)
        objections = {runtime.name: self._objection(runtime, model) for runtime in self._runtimes}
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

    def _objection(self, runtime: Runtime, model: ModelFacts) -> str:
        """Why a runtime cannot run a model; empty if it can."""
        if runtime.modality != model.modality or model.format not in runtime.formats:
            return f"it does not read {model.modality} models in {model.format}"
        if model.architecture not in runtime.architectures:
            return f"it does not know the architecture {model.architecture!r}"
        if missing := model.capabilities - runtime.capabilities:
            return f"it cannot {', '.join(sorted(missing))}"
        if self._device not in runtime.devices:
            return f"it does not run on {self._device}"
        if self._device == "cpu" and not self._forced and model.size > CPU_LIMIT_BYTES:
            return self._needs_gpu(model)
        return ""

    def _refusal(self, model: ModelFacts) -> str:
        """Why no runtime can run a model: what the last filter that any runtime reached says."""
        left = [runtime for runtime in self._runtimes if runtime.modality == model.modality]
        left = [runtime for runtime in left if model.format in runtime.formats]
        if not left:
            return f"{model.id}: no runtime here reads {model.modality} models in {model.format}"
        names = ", ".join(runtime.name for runtime in left)
        left = [runtime for runtime in left if model.architecture in runtime.architectures]
        if not left:
            return f"{model.id}: architecture {model.architecture!r} is not supported by {names}"
        left = [runtime for runtime in left if model.capabilities <= runtime.capabilities]
        if not any(self._device in runtime.devices for runtime in left):
            return f"{model.id}: {names} cannot run it on {self._device}"
        return f"{model.id}: {self._needs_gpu(model)}"

    def _needs_gpu(self, model: ModelFacts) -> str:
        return (
            f"needs a GPU: its weights take {model.size / GIB:.1f} GiB, without a GPU {CPU_LIMIT_BYTES / GIB:.0f} GiB "
            "are accepted (ALLM_DEVICE=cpu lifts the limit)"
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
