"""What vLLM is told by its environment: to keep to itself, to this machine, and to our folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from services.text.engine.messages import EngineOptions
from services.text.engine.runtimes.vllm.arguments import eager


def vllm_environ(options: EngineOptions, cache: Path) -> Mapping[str, str]:
    """On top of what every worker of a text model is told. `cache`: a folder for what is compiled.

    It reports to nobody, loads no plugins, and logs errors only, none of which quote a prompt. The engine runs in the
    worker itself. Its processes talk over the loopback interface, but for those of a Ray cluster; without a GPU they
    bind no thread to a core, because other models compute on the same ones. Its steps have more and shorter parts than
    those of other runtimes, between which threads that sleep cost 7% of the tokens/s (32 sequences, two cores), so that
    they wait awake for a quarter of a millisecond. Where the model is not compiled nothing is, not even the one
    function for logprobs that vLLM would else compile when a request first asks for them.
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
        # Its ranks are on other machines, and are told what we are told: the interfaces are for them to choose.
        return {**environ, "RAY_ADDRESS": options.ray_address, "NCCL_SOCKET_IFNAME": "", "GLOO_SOCKET_IFNAME": ""}
    return {**environ, "VLLM_HOST_IP": "127.0.0.1"}
