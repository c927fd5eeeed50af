"""Environment variables of vLLM workers: no telemetry, no network beyond this machine, caches in allm's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from services.text.engine.messages import EngineOptions
from services.text.engine.runtimes.vllm.arguments import eager


def vllm_environ(options: EngineOptions, cache: Path) -> Mapping[str, str]:
    """Returns the variables in addition to those of every text worker. `cache`: the folder for compiled code.

    vLLM sends no telemetry, loads no plugins, and logs only errors, which never quote a prompt. The engine runs in the
    worker itself. Its processes use the loopback interface, except in a Ray cluster. Without a GPU they bind no threads
    to cores, because other models compute on the same cores. A step has more and shorter parts than with other
    runtimes; threads that sleep between them cost 7% of the tokens/s (32 sequences, two cores), so they spin for a
    quarter of a millisecond. If the model is not compiled, nothing is, not even the function for logprobs, which vLLM
    would otherwise compile when a request first asks for them.
    """
    environ = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_PLUGINS": "",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "PYTHONWARNINGS": "ignore",  # of libraries about each other
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CACHE_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "GOMP_SPINCOUNT": "10000",
    }
    if eager(options):
        environ["TORCH_COMPILE_DISABLE"] = "1"
    if options.ray_address:
        # The ranks on other machines inherit this environment and must choose their own interfaces.
        return {**environ, "RAY_ADDRESS": options.ray_address, "NCCL_SOCKET_IFNAME": "", "GLOO_SOCKET_IFNAME": ""}
    return {**environ, "VLLM_HOST_IP": "127.0.0.1"}
