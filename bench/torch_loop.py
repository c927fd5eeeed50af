"""Load on a runtime under the bare batch loop, without servers: `python -m bench.torch_loop --clients 1,8,32`.

The load equals that of `bench.torch_peers` on whole servers, so the difference is the cost of gateway and service.
`--profile` profiles the interpreter. The bench needs only torch, transformers and `services/text/engine`.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import json
import os
import pstats
import sys
import time
from dataclasses import asdict

from bench.engine_load import Load, measure, options
from services.text.engine.runtime import Loader

ENGINES = {
    "torch": ("services.text.engine.runtimes.torch.engine", "SafetensorsEngine"),
    "llama_cpp": ("services.text.engine.runtimes.llama_cpp", "LlamaEngine"),
}
REQUESTS = {1: 6, 8: 24, 32: 64}
SHOWN = 35  # functions of a profile


def main() -> None:
    """Loads a model, measures it at each number of clients and prints a line for each."""
    parser = argparse.ArgumentParser(description="Times a runtime under the bare batch loop.")
    parser.add_argument("--model", help="file or folder of the model; by default the demo's")
    parser.add_argument("--runtime", choices=ENGINES, default="torch")
    parser.add_argument("--clients", default="1,8,32", help="numbers of clients, with commas")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=143)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--profile", action="store_true", help="print where the interpreter's time goes")
    parser.add_argument("--json", action="store_true", help="print only the figures, as JSON")
    given = parser.parse_args()
    _become_a_worker(given.threads)
    levels = [int(part) for part in given.clients.split(",")]
    asked = options(given.model or _demo(given.runtime), max(levels), threads=given.threads, gpu=given.gpu)
    begin = time.perf_counter()
    runtime = _loader(given.runtime)(asked, lambda _: None)
    if not given.json:
        print(f"{given.runtime}: loaded in {time.perf_counter() - begin:.1f} s, {given.threads} threads")
    for number in range(given.rounds):
        for clients in levels:
            sizes = given.prompt_tokens, given.output_tokens
            load = Load(clients, REQUESTS.get(clients, 3 * clients), max(2, clients // 2), *sizes)
            profile = cProfile.Profile(time.process_time)
            with profile if given.profile else _Nothing():
                figures = measure(runtime, asked, load, f"{number} {clients}")
            print(json.dumps(asdict(figures)) if given.json else figures.line(), flush=True)
            if given.profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(SHOWN)


def _become_a_worker(threads: int) -> None:
    """Restarts this program with the environment of the text service's workers, which libraries read only at the start.

    The values are those of `services.worker.process`, which a bare machine may lack.
    """
    environ = {
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": "3000",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": str(threads),
    }
    if environ.items() <= os.environ.items():
        return
    os.execve(sys.executable, [sys.executable, "-m", "bench.torch_loop", *sys.argv[1:]], {**os.environ, **environ})  # noqa: S606


class _Nothing:
    """A null profiler."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _loader(runtime: str) -> Loader:
    module, name = ENGINES[runtime]
    loader: Loader = getattr(importlib.import_module(module), name)
    return loader


def _demo(runtime: str) -> str:
    from bench.weights import Precision, gguf, safetensors  # noqa: PLC0415 (not on a bare machine)

    return str(safetensors() if runtime == "torch" else gguf(Precision.BF16))


if __name__ == "__main__":
    main()
