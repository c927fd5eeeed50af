"""The models that vLLM supports: a list from its pinned release, used without importing vLLM.

A test compares the names with an installed vLLM (`make vllm`).
"""

from __future__ import annotations

# model_type of config.json: models that transformers defines and vLLM implements a decoder for.
# Left out: models that vLLM runs with transformers' code, models that need code from their repository, which is never
# run, and multimodal models.
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
