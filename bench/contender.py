"""The launch of the compared servers for a scenario: the same file and threads.

allm runs as installed, and once more tuned: with the same context, batch and number of clients as llama-server, which
runs at its best: a slot for each client, a prompt cache, and the fastest of three settings.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.process import Launch, free_port

BUILD_DIR = Path(__file__).parent / ".build"
CONTEXT_TOKENS = 1024  # for each client: the longest prompt and its answer take about 600
LONG_CONTEXT_TOKENS = 2304  # with long prompts


@dataclass(frozen=True, slots=True)
class Scenario:
    """The model and load for which a server is started."""

    gguf: Path
    concurrency: int
    batch_tokens: int = 2048  # most tokens computed in one step
    threads: int = 0  # 0: one for each core that this process may use
    context_tokens: int = CONTEXT_TOKENS  # of each client
    projector: Path | None = None  # beside `gguf`, for pictures

    @property
    def total_tokens(self) -> int:
        """KV cells for all clients together."""
        return self.context_tokens * self.concurrency

    @property
    def compute_threads(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Setting:
    """Arguments of llama-server in addition to those of the scenario."""

    name: str
    arguments: tuple[str, ...]


# The settings that `bench.tune` found fastest at some level, each with a separate cache for every slot. One cache for
# all slots (--kv-unified) was slower with several clients: each token then attends over the cells of all of them.
SETTINGS = (
    Setting("per slot", ("--no-kv-unified", "-ub", "512", "-fa", "on")),
    # Without copies of idle slots' prompts in RAM: sometimes faster if no prompt repeats.
    Setting("per slot, no RAM cache", ("--no-kv-unified", "-ub", "512", "-fa", "on", "-cram", "0")),
    # Without flash attention the first token comes earlier after a long shared prefix.
    Setting("per slot, fa off", ("--no-kv-unified", "-ub", "512", "-fa", "off")),
)


def llama_server(binary: Path, setting: Setting, scenario: Scenario) -> Launch:
    """Launches llama.cpp's own server. The scenario's arguments come first, so that a setting can override them."""
    port = free_port()
    arguments = [str(binary), "--model", str(scenario.gguf), "--alias", "bench", "--host", "127.0.0.1", "--no-ui"]
    arguments += ["--port", str(port), "--parallel", str(scenario.concurrency), "-c", str(scenario.total_tokens)]
    arguments += ["--mmproj", str(scenario.projector)] if scenario.projector else []
    arguments += ["-b", str(scenario.batch_tokens), "-t", str(scenario.compute_threads), *setting.arguments]
    return Launch("llama-server", arguments, port, "/health", BUILD_DIR / "logs" / "llama-server.log")


def allm(scenario: Scenario, tuned: bool = True) -> Launch:
    """Launches the whole stack: Envoy, the text service and its worker, under `allm serve`, tuned or as installed."""
    port = free_port()
    environment = {
        "ALLM_PORT": str(port),
        "ALLM_METRICS_PORT": "0",  # any free port: another allm may run on this machine
        "ALLM_HOME": str(BUILD_DIR / "home"),
        "ALLM_AUDIO_REPLICAS": "0",
        "ALLM_IMAGE_REPLICAS": "0",
        "ALLM_MODELS": f"bench={scenario.gguf}",
    }
    if scenario.threads:
        environment["ALLM_THREADS"] = str(scenario.threads)
    if tuned:
        environment |= {
            "ALLM_MAX_SEQUENCES": str(scenario.concurrency),
            "ALLM_CONTEXT_TOKENS": str(scenario.context_tokens),  # llama-server gives each slot its share of -c
            "ALLM_KV_TOKENS": str(scenario.total_tokens),
            "ALLM_BATCH_TOKENS": str(scenario.batch_tokens),
            "ALLM_CHUNK_TOKENS": str(scenario.batch_tokens),  # llama-server also fills its batch with prompts
        }
    arguments = [sys.executable, "-m", "services.cli", "serve"]
    return Launch("allm", arguments, port, "/healthz", BUILD_DIR / "logs" / "allm.log", environment)
