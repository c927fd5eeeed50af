"""The runtimes: a static table of the formats, architectures, capabilities and devices that each one supports.

Runtimes are not discovered: each is one entry here and one module in its service's `engine/runtimes`. The lists are
those of the pinned releases, used without importing them; tests compare them with the libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.models.descriptor import ModelFacts

CPU = "cpu"
DEVICES = ("cuda", "vulkan", "mps", CPU)  # best first


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSpec:
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
    gpu_bytes: int = 0  # memory of its GPU, if the GPU has its own and it can be read

    @property
    def gpu(self) -> bool:
        """True if it computes on a GPU here."""
        return self.device not in ("", CPU)

    @property
    def speculates(self) -> bool:
        """True if it can guess tokens, at least for models without recurrent state (ALLM_SPECULATION)."""
        return self.name in ("llama_cpp", "torch")

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
    gpt-oss lfm2 lfm2moe smallthinker seed_oss grovemoe apertus minimax-m2 mistral3 mistral4 kimi-linear qwen2vl qwen3vl
    qwen3vlmoe
    """.split()  # noqa: SIM905 (a hundred quoted words are harder to read)
)

# Encoder architectures, which only embed. A decoder embeds if its header names a pooling type; many families never do.
LLAMA_CPP_ENCODERS = frozenset(
    """
    bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert gemma-embedding
    """.split()  # noqa: SIM905
)

# Those of llama.cpp with a classifier's tensors (LLM_TENSOR_CLS, LLM_TENSOR_CLS_OUT).
_LLAMA_CPP_RERANKERS = frozenset({"bert", "jina-bert-v2", "modern-bert", "neo-bert", "qwen3"})

# model_type of config.json, as transformers itself defines it (a model's own code is never run).
_TORCH_DECODERS = frozenset("llama qwen2 qwen3 qwen3_moe glm glm4 glm4_moe gpt_oss nemotron_h".split())  # noqa: SIM905
# Those that take pictures; a test compares the list with the families in services/text/engine/runtimes/torch/
# vision_families.py.
_TORCH_SEEING = frozenset("gemma3 glm4v idefics3 llava qwen2_5_vl qwen2_vl qwen3_vl smolvlm".split())  # noqa: SIM905
_TORCH_ENCODERS = frozenset(
    """
    albert bert camembert deberta deberta-v2 distilbert electra ernie eurobert modernbert mpnet nomic_bert rembert
    roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl
    """.split()  # noqa: SIM905
)
_TORCH_RERANKERS = _TORCH_ENCODERS | {"qwen3"}  # encoders with a classifier, and decoders that answer yes or no
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

# model_type of config.json: models that transformers defines and vLLM implements a decoder for.
# Left out: models that vLLM runs with transformers' code, models that need code from their repository, which is never
# run, and multimodal models (VLLM_SEEING has some).
VLLM_DECODERS = frozenset(
    """
    afmoe apertus axk1 bloom cohere cohere2 cohere2_moe dbrx deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 ernie4_5
    ernie4_5_moe exaone4 exaone_moe falcon falcon_h1 falcon_mamba gemma gemma2 gemma3_text gemma3n_text gemma4_text glm4
    glm4_moe glm4_moe_lite glm_moe_dsa gpt-sw3 gpt2 gpt_oss gptj granite granite_swa granitemoe granitemoe_swa
    granitemoehybrid granitemoeshared hrm_text hy_v3 hy_v4 hyperclovax inkling_text jamba kimi_linear laguna lfm2
    lfm2_moe llama llama4_text longcat_flash mamba mamba2 mimo_v2_flash minicpm3 minimax_m2 ministral3 mistral mixtral
    nemotron nemotron_h olmo_hybrid olmoe opt phi3 qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe
    qwen3_next qwen4_exp_text stablelm zamba2
    """.split()  # noqa: SIM905 (as many quoted words are harder to read)
)

# Those that take pictures, and whose answers agree with transformers' on vLLM.
VLLM_SEEING = frozenset("idefics3 llava llava_next".split())  # noqa: SIM905

# Left out without CUDA: models with GPU-only kernels, such as sparse attention, and models that need torchvision, which
# the CPU environment does not have.
VLLM_CPU_DECODERS = VLLM_DECODERS - frozenset(
    "deepseek_v32 glm_moe_dsa hy_v4 inkling_text kimi_linear qwen3_5_moe_text qwen3_5_text qwen4_exp_text".split()  # noqa: SIM905
)

# Quantised weights, from vLLM's tables of methods and hardware. compressed-tensors in config.json covers many schemes;
# on CUDA all of them have kernels.
_DENSE = frozenset("gemma2 gemma3_text glm4 granite llama mistral phi3 qwen2 qwen3".split())  # noqa: SIM905
_EXPERTS = frozenset("glm4_moe mixtral qwen2_moe qwen3_moe qwen3_next".split())  # noqa: SIM905
_METHODS = ("awq", "compressed-tensors", "fp8", "gptq")
_CPU_METHODS = ("awq", "gptq")
_PUBLISHED = frozenset({"deepseek_v3:fp8", "gpt_oss:mxfp4", "minimax_m2:fp8"})  # as their publishers release them

VLLM_QUANTIZATIONS = _PUBLISHED | {f"{name}:{method}" for name in _DENSE | _EXPERTS for method in _METHODS}
VLLM_CPU_QUANTIZATIONS = frozenset(f"{name}:{method}" for name in _DENSE for method in _CPU_METHODS)

VLLM_MISSING = (
    "vLLM is not installed here: make an environment with it (make vllm, or on GPUs pip install 'allm-server[vllm]'), "
    "and set ALLM_VLLM_PYTHON to its interpreter"
)

RUNTIMES = (
    RuntimeSpec(
        name="llama_cpp",
        modality="text",
        formats=frozenset({"gguf"}),
        architectures={
            "chat": _LLAMA_CPP_DECODERS,
            "vision": _LLAMA_CPP_DECODERS,  # with a projector in a file of its own
            "embeddings": _LLAMA_CPP_DECODERS | LLAMA_CPP_ENCODERS,
            "rerank": _LLAMA_CPP_RERANKERS,
        },
        devices=frozenset({"cpu", "cuda", "vulkan", "mps"}),
    ),
    RuntimeSpec(
        name="torch",
        modality="text",
        formats=frozenset({"safetensors"}),
        architectures={
            "chat": _TORCH_DECODERS | _TORCH_SEEING,
            "vision": _TORCH_SEEING,
            "embeddings": _TORCH_ENCODERS | _TORCH_EMBEDDING_DECODERS,
            "rerank": _TORCH_RERANKERS,
        },
        devices=frozenset({"cpu", "cuda", "mps"}),
        quantizations=frozenset({"gpt_oss:mxfp4"}),
    ),
    # The last text runtime: without measurements it is chosen only for models that the others do not support. It counts
    # as missing until its service has detected it (services/text/runtime_availability.py).
    RuntimeSpec(
        name="vllm",
        modality="text",
        formats=frozenset({"safetensors"}),
        architectures={"chat": VLLM_DECODERS | VLLM_SEEING, "vision": VLLM_SEEING},
        devices=frozenset({"cpu", "cuda"}),
        quantizations=VLLM_QUANTIZATIONS,
        pipelines=True,
        missing=VLLM_MISSING,
    ),
    RuntimeSpec(
        name="whisper",
        modality="audio",
        formats=frozenset({"whisper"}),
        architectures={"transcription": _WHISPER, "translation": _WHISPER},
        devices=frozenset({"cpu", "cuda", "mps"}),
    ),
    RuntimeSpec(
        name="faster_whisper",
        modality="audio",
        formats=frozenset({"whisper"}),
        architectures={"transcription": _WHISPER_ANY, "translation": _WHISPER_ANY},
        devices=frozenset({"cpu", "cuda"}),  # CTranslate2 has no Metal: on a Mac it uses the processor
    ),
    RuntimeSpec(
        name="diffusers",
        modality="image",
        formats=frozenset({"diffusers"}),
        architectures={"image": _DIFFUSERS},
        devices=frozenset({"cpu", "cuda", "mps"}),
    ),
)
