"""Conversion of our engine options to vLLM's engine arguments."""

from __future__ import annotations

import shutil
from typing import Any

from services.text.engine.messages import EngineOptions
from services.text.engine.token_budget import step_tokens

CPU_BLOCK = 32  # cells of a block: smaller blocks are slower on a CPU, larger ones share fewer prefixes
GPU_BLOCK = 16
# Of a step while a prompt is scored: each token needs a row of logits and one of logprobs. One prompt gets half.
MOST_SCORED_TOKENS = 128
GPU_SHARE = 0.01  # of a GPU's memory that must be free for vLLM to start
# One picture at a time is prepared, and none for a second time: its prompt's cells and its embeddings are kept.
_PICTURES = {"limit_mm_per_prompt": {"image": 1, "video": 0}, "mm_processor_cache_gb": 0}


def cache_blocks(options: EngineOptions, cells: int) -> tuple[int, int]:
    """Returns the number of blocks for `cells`, including vLLM's own and one open per request, and a block's cells."""
    size = GPU_BLOCK if options.gpu else CPU_BLOCK
    return -(-cells // size) + options.max_sequences + 1, size


def engine_arguments(options: EngineOptions, context: int, cells: int, *, sees: bool = False) -> dict[str, Any]:
    """Returns the arguments of vLLM's `EngineArgs`.

    `context`: maximum tokens of a request; `cells`: of the cache; `sees`: whether the model takes pictures.

    Prompts and answers are tokens, so vLLM needs a tokenizer only for the placeholders of pictures. A checkpoint's
    sampling defaults are not applied: requests set every parameter. A checkpoint's own code is never run.
    """
    return {
        "model": options.path,
        "skip_tokenizer_init": not sees,
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
        "enable_logging_iteration_details": True,  # provides the tokens of a step; nothing is logged
        "tensor_parallel_size": options.tensor_parallel,
        "pipeline_parallel_size": options.pipeline_parallel,
        "distributed_executor_backend": _backend(options),
        "enforce_eager": eager(options),
        **_memory(options, cells),
        **(_PICTURES if sees else {}),
    }


def _backend(options: EngineOptions) -> str:
    """Returns vLLM's executor: `uni`: in this process; `mp`: a process per part of the model; `ray`: on a cluster."""
    if options.ray_address:
        return "ray"
    return "mp" if options.tensor_parallel * options.pipeline_parallel > 1 else "uni"


def _memory(options: EngineOptions, cells: int) -> dict[str, Any]:
    """Returns the arguments for the size of the cache: what admission has reserved, not what a GPU has free."""
    blocks, size = cache_blocks(options, cells)
    # `kv_cache_memory_bytes` only keeps vLLM from measuring. It refuses a GPU of which less than its share is free, so
    # the share is small: other models may be there.
    shared = {"gpu_memory_utilization": GPU_SHARE} if options.gpu else {}
    return {"block_size": size, "num_gpu_blocks_override": blocks, "kv_cache_memory_bytes": 1, **shared}


def eager(options: EngineOptions) -> bool:
    """Returns True if the model runs uncompiled. On a CPU, vLLM needs compilation for pipeline parallelism."""
    if not options.gpu and options.pipeline_parallel > 1:
        return False
    return not (options.compiled and (options.gpu or _compiles()))


def _compiles() -> bool:
    """Returns True if this machine has a C++ compiler, which torch needs to build faster kernels."""
    return shutil.which("g++") is not None or shutil.which("clang++") is not None
