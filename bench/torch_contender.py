"""The torch servers of the comparison: the launch of each, for all levels of a round, and its request parameters.

All have the same bf16 weights, compute threads, maximum clients, context and batch. Other settings keep their defaults.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from rich.console import Console

from bench.contender import BUILD_DIR, CONTEXT_TOKENS
from bench.peer_environment import transformers_command, vllm_command
from bench.process import Launch, free_port
from bench.prompts import OUTPUT_TOKENS

_BATCH_TOKENS = 2048
_START_SECONDS = 600.0  # vLLM compiles the model at its first start
_OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}


class Server(StrEnum):
    """A server in the comparison."""

    ALLM = "allm"
    ALLM_VLLM = "allm, runtime vllm"
    TRANSFORMERS = "transformers serve"
    VLLM = "vLLM"


@dataclass(frozen=True, slots=True)
class Contender:
    """The launch of a server and the differences in its requests."""

    launch: Launch
    endless: Mapping[str, object] = field(default_factory=lambda: {"ignore_eos": True})
    says_done: bool = True


def contender(server: Server, folder: Path, clients: int, threads: int, console: Console) -> Contender:
    """Returns a server for the model in `folder`; makes its environment if it is missing."""
    make = {
        Server.ALLM: _allm,
        Server.ALLM_VLLM: _allm_vllm,
        Server.TRANSFORMERS: _transformers,
        Server.VLLM: _vllm,
    }[server]
    return make(folder, clients, threads, console)


def _allm(folder: Path, clients: int, threads: int, console: Console) -> Contender:
    """Launches the whole stack: Envoy, the text service and its worker, under `allm serve`."""
    return Contender(_stack("allm-torch", {"ALLM_MODELS": f"bench={folder}"}, clients, threads))


def _allm_vllm(folder: Path, clients: int, threads: int, console: Console) -> Contender:
    """Launches the whole stack with vLLM in the worker, from the same environment as vLLM's own server."""
    declared = BUILD_DIR / "models-vllm.yaml"
    entry = {"id": "bench", "source": folder.as_uri(), "format": "safetensors", "runtime": "vllm"}
    declared.write_text(json.dumps({"models": [entry]}), encoding="utf-8")
    models = {
        "ALLM_MODELS_FILE": str(declared),
        "ALLM_MODEL_ROOTS": str(folder.parent),
        "ALLM_VLLM_PYTHON": str(vllm_command(console).with_name("python")),
    }
    return Contender(_stack("allm-vllm", models, clients, threads))


def _stack(name: str, models: Mapping[str, str], clients: int, threads: int) -> Launch:
    port = free_port()
    environment = {
        "ALLM_PORT": str(port),
        "ALLM_METRICS_PORT": "0",
        "ALLM_HOME": str(BUILD_DIR / f"home-{name}"),
        "ALLM_AUDIO_REPLICAS": "0",
        "ALLM_IMAGE_REPLICAS": "0",
        "ALLM_DEVICE": "cpu",
        "ALLM_MAX_SEQUENCES": str(clients),
        "ALLM_CONTEXT_TOKENS": str(CONTEXT_TOKENS),
        "ALLM_KV_TOKENS": str(CONTEXT_TOKENS * clients),
        "ALLM_BATCH_TOKENS": str(_BATCH_TOKENS),
        "ALLM_CHUNK_TOKENS": str(_BATCH_TOKENS),  # the others also fill their batches with prompts
        "ALLM_THREADS": str(threads),
        **models,
    }
    arguments = [sys.executable, "-m", "services.cli", "serve"]
    log = BUILD_DIR / "logs" / f"{name}.log"
    return Launch("allm", arguments, port, "/healthz", log, environment)


def _transformers(folder: Path, clients: int, threads: int, console: Console) -> Contender:
    port = free_port()
    arguments = [str(transformers_command(console)), "serve", str(folder), "--continuous-batching", "--device", "cpu"]
    arguments += ["--dtype", "bfloat16", "--port", str(port)]
    # Two blocks of 256 tokens for each client, one more than a request needs: by default it takes nearly all memory of
    # the machine, and each block makes it slower.
    arguments += ["--cb-num-blocks", str(2 * clients)]
    arguments += ["--cb-max-batch-tokens", str(_BATCH_TOKENS)]
    log = BUILD_DIR / "logs" / "transformers.log"
    # As in our workers: threads that spin at each barrier slow down the server's own threads.
    environment = {**_OFFLINE, "OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1000"}
    # Its only way past the end token is a complete generation config without an end token.
    config = {"max_new_tokens": OUTPUT_TOKENS, "do_sample": False, "eos_token_id": -1}
    return Contender(
        Launch("transformers", arguments, port, "/health", log, environment, _START_SECONDS, str(folder)),
        endless={"generation_config": json.dumps(config)},
        says_done=False,
    )


def _vllm(folder: Path, clients: int, threads: int, console: Console) -> Contender:
    port = free_port()
    arguments = [str(vllm_command(console)), "serve", str(folder), "--served-model-name", "bench"]
    arguments += ["--dtype", "bfloat16", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--max-num-seqs", str(clients), "--max-model-len", str(CONTEXT_TOKENS)]
    arguments += ["--max-num-batched-tokens", str(_BATCH_TOKENS)]
    environment = {
        **_OFFLINE,
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB: more than the KV cells of the others
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",  # by default it reserves a core for its own server
        "VLLM_CACHE_ROOT": str(BUILD_DIR / "vllm-cache"),
    }
    log = BUILD_DIR / "logs" / "vllm.log"
    return Contender(Launch("vLLM", arguments, port, "/health", log, environment, _START_SECONDS, "bench"))
