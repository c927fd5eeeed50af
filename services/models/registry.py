"""Which runtime can run a model: a static table, looked through when a model is registered or loaded.

There is no discovery of any kind: a runtime is one entry here and one module in its service's `engine/runtimes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.models.descriptor import ModelDescriptor
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


class EngineRegistry:
    """Resolves descriptors to runtimes. `device` is where models run here; `forced` whether an operator chose it."""

    def __init__(self, device: str, *, forced: bool, runtimes: tuple[Runtime, ...] = RUNTIMES) -> None:
        self._device = device
        self._forced = forced
        self._runtimes = runtimes

    @property
    def device(self) -> str:
        """cuda, mps or cpu."""
        return self._device

    def resolve(self, descriptor: ModelDescriptor) -> Runtime:
        """The runtime for a model: the first registered one that passes every filter.

        Raises:
            Unsupported: none does; the message says which filter failed last.
        """
        left = [runtime for runtime in self._runtimes if runtime.modality == descriptor.modality]
        left = [runtime for runtime in left if descriptor.format in runtime.formats]
        if not left:
            raise Unsupported(
                f"{descriptor.id}: no runtime here reads {descriptor.modality} models in {descriptor.format}"
            )
        known = [runtime for runtime in left if descriptor.architecture in runtime.architectures]
        names = ", ".join(runtime.name for runtime in left)
        if not known:
            raise Unsupported(f"{descriptor.id}: architecture {descriptor.architecture!r} is not supported by {names}")
        able = [runtime for runtime in known if descriptor.capabilities <= runtime.capabilities]
        able = [runtime for runtime in able if self._device in runtime.devices]
        if not able:
            raise Unsupported(f"{descriptor.id}: {names} cannot run it on {self._device}")
        if self._device == "cpu" and not self._forced and descriptor.size > CPU_LIMIT_BYTES:
            raise Unsupported(
                f"{descriptor.id}: needs a GPU: its weights take {descriptor.size / GIB:.1f} GiB, without a GPU "
                f"{CPU_LIMIT_BYTES / GIB:.0f} GiB are accepted (ALLM_DEVICE=cpu lifts the limit)"
            )
        return able[0]
