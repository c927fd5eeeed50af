"""How vLLM is set up for a model: its engine's arguments, out of ours."""

from __future__ import annotations

import shutil
from typing import Any

from services.text.engine.messages import EngineOptions
from services.text.engine.token_budget import step_tokens

CPU_BLOCK = 32  # cells of a block: fewer are slower on a CPU, more make prefixes that are shared rarer
GPU_BLOCK = 16


def cache_blocks(options: EngineOptions, cells: int) -> tuple[int, int]:
    """How many blocks so many cells need, and the cells of a block. One is vLLM's own, and each request has an open
    one.
    """
    size = GPU_BLOCK if options.gpu else CPU_BLOCK
    return -(-cells // size) + options.max_sequences + 1, size


def engine_arguments(options: EngineOptions, context: int, cells: int, share: float) -> dict[str, Any]:
    """Arguments of vLLM's `EngineArgs`. `context`: most tokens of a request; `cells`: of the cache; 0: what is left of
    the `share` of a GPU's memory.

    Prompts come as tokens and tokens go out, so that vLLM needs no tokenizer. What a checkpoint recommends for sampling
    is not applied: requests say everything. No code of a checkpoint's own is run.
    """
    return {
        "model": options.path,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "trust_remote_code": False,
        "load_format": "safetensors",
        "use_tqdm_on_load": False,
        "dtype": options.dtype,
        "max_model_len": context,
        "max_num_seqs": options.max_sequences,
        "max_num_batched_tokens": max(step_tokens(options), options.max_sequences),
        "long_prefill_token_threshold": min(options.chunk_tokens, context),
        "enable_chunked_prefill": True,
        "enable_prefix_caching": options.prefix_cache,
        "logprobs_mode": "raw_logprobs",
        "enable_logging_iteration_details": True,  # how many tokens a step had; nothing is logged
        "tensor_parallel_size": options.tensor_parallel,
        "pipeline_parallel_size": options.pipeline_parallel,
        "distributed_executor_backend": _backend(options),
        "enforce_eager": eager(options),
        **_memory(options, cells, share),
    }


def _backend(options: EngineOptions) -> str:
    """`uni`: in this process; `mp`: a process for each part of the model; `ray`: those of a cluster."""
    if options.ray_address:
        return "ray"
    return "mp" if options.tensor_parallel * options.pipeline_parallel > 1 else "uni"


def _memory(options: EngineOptions, cells: int, share: float) -> dict[str, Any]:
    """The size of the cache."""
    if not cells:
        return {"gpu_memory_utilization": share}
    blocks, size = cache_blocks(options, cells)
    # The bytes only keep vLLM from measuring.
    return {"block_size": size, "num_gpu_blocks_override": blocks, "kv_cache_memory_bytes": 1}


def eager(options: EngineOptions) -> bool:
    """Whether the model is computed as it is written. Without a GPU vLLM's pipelines come to be by compiling alone."""
    if not options.gpu and options.pipeline_parallel > 1:
        return False
    return not (options.compiled and (options.gpu or _compiles()))


def _compiles() -> bool:
    """Whether there is the compiler that torch makes faster kernels with."""
    return shutil.which("g++") is not None or shutil.which("clang++") is not None
