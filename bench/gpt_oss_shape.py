"""Throughput of the gpt-oss-20b shape on a GPU, with random weights: `python -m bench.gpt_oss_shape`.

The bench compares tokens per second of our batch loop with transformers' own continuous batching, at 1, 8 and 64
clients, and with the bound of the memory's bandwidth: each step reads every weight that some sequence needs, and all
keys and values. It needs only torch, transformers and `services/text/engine`, so it runs on a bare machine with a GPU.
`--tiny` checks in seconds on a CPU that the bench works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from bench.engine_load import Load, measure, options
from bench.random_gpt_oss import config, write
from services.text.engine.runtimes.torch.engine import SafetensorsEngine

_LIBRARY: Any = transformers  # untyped: its types differ between releases
CLIENTS = (1, 8, 64)
TINY_CLIENTS = (1, 4)
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 256
TINY_PROMPT_TOKENS, TINY_OUTPUT_TOKENS = 24, 8
CONTEXT_TOKENS = 1024
PATIENCE_SECONDS = 300.0
_COPIES = 10


@dataclass(frozen=True, slots=True)
class Case:
    """A number of clients and the size of their requests."""

    clients: int
    requests: int
    prompt_tokens: int
    output_tokens: int


def main() -> None:
    """Makes the model, measures both and prints a table; exits with 1 without a GPU, unless `--tiny` is set."""
    parser = argparse.ArgumentParser(description="Times the shape of gpt-oss-20b with random weights on a GPU.")
    parser.add_argument("--tiny", action="store_true", help="a miniature on the processor, to see that this works")
    parser.add_argument("--folder", type=Path, help="where the model is made, or is already: 14 GB")
    parser.add_argument("--clients", help="numbers of clients, with commas")
    parser.add_argument("--without-peer", action="store_true", help="only our own engine")
    given = parser.parse_args()
    if not (given.tiny or torch.cuda.is_available()):
        sys.exit("bench.gpt_oss_shape needs a CUDA device; --tiny runs a miniature on the processor")
    device = "cpu" if given.tiny else "cuda"
    made = given.folder or Path(tempfile.mkdtemp(prefix="gpt-oss-shape-")) / "model"
    try:
        if not made.exists():
            begin = time.perf_counter()
            write(config(given.tiny), made, device)
            print(f"made {made.name} in {time.perf_counter() - begin:.0f} s", flush=True)
        levels = [int(part) for part in given.clients.split(",")] if given.clients else None
        _report(made, device, _cases(given.tiny, levels), given.tiny, given.without_peer)
    finally:
        if not given.folder:
            shutil.rmtree(made.parent, ignore_errors=True)


def _cases(tiny: bool, levels: list[int] | None) -> list[Case]:
    sizes = (TINY_PROMPT_TOKENS, TINY_OUTPUT_TOKENS) if tiny else (PROMPT_TOKENS, OUTPUT_TOKENS)
    return [Case(clients, 2 * clients + 1, *sizes) for clients in levels or (TINY_CLIENTS if tiny else CLIENTS)]


def _report(folder: Path, device: str, cases: list[Case], tiny: bool, alone: bool) -> None:
    shape = config(tiny)
    name = torch.cuda.get_device_name() if device == "cuda" else "processor"
    bandwidth = _bandwidth(device)
    versions = ", ".join(f"{one} {importlib.metadata.version(one)}" for one in ("torch", "transformers"))
    print(f"{name}, {bandwidth / 1e9:.0f} GB/s measured, {versions}", flush=True)
    ours = _ours(folder, device, cases)
    peer = {} if alone else _peer(folder, device, cases)
    print("| clients | allm tokens/s | transformers tokens/s | ratio | floor bf16 | floor MXFP4 | of the bf16 floor |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for case in cases:
        mine, other = ours[case.clients], peer.get(case.clients, float("nan"))
        dense, packed = (_floor(shape, case, bandwidth, number) for number in (2.0, 17 / 32))
        print(
            f"| {case.clients} | {mine:.1f} | {other:.1f} | {mine / other:.2f}x | {dense:.0f} | {packed:.0f} "
            f"| {100 * mine / dense:.1f}% |"
        )


def _ours(folder: Path, device: str, cases: list[Case]) -> dict[int, float]:
    """Measures tokens/s of our engine under the batch loop."""
    most = max(case.clients for case in cases)
    threads = len(os.sched_getaffinity(0))
    asked = options(str(folder), most, threads=threads, gpu=device == "cuda", context=CONTEXT_TOKENS)
    begin = time.perf_counter()
    engine = SafetensorsEngine(asked, lambda _: None)
    print(f"allm: loaded in {time.perf_counter() - begin:.0f} s{_memory(device)}", flush=True)
    found = {}
    for case in cases:
        load = Load(case.clients, case.requests, case.clients, case.prompt_tokens, case.output_tokens)
        figures = measure(engine, asked, load, str(case.clients))
        print(f"allm: {figures.line()}", flush=True)
        found[case.clients] = figures.tokens_per_second
    del engine
    _give_back(device)
    return found


def _peer(folder: Path, device: str, cases: list[Case]) -> dict[int, float]:
    """Measures tokens/s of transformers' continuous batching, with its own choice of attention and graphs."""
    _LIBRARY.logging.set_verbosity_error()
    packed = device == "cuda" and all(importlib.util.find_spec(name) for name in ("kernels", "triton"))
    model = _LIBRARY.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.bfloat16,
        quantization_config=_LIBRARY.Mxfp4Config(dequantize=not packed),
        local_files_only=True,
    )
    model = model if packed else model.to(device)
    print(f"transformers: loaded{_memory(device)}", flush=True)
    asked = _LIBRARY.GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=cases[0].output_tokens)
    manager = model.init_continuous_batching(generation_config=asked, **_cells(device, cases))
    manager.start()
    try:
        found = {}
        for case in cases:
            _drive(manager, case, case.clients)  # warms up
            begin = time.perf_counter()
            tokens = _drive(manager, case, case.requests)
            found[case.clients] = tokens / (time.perf_counter() - begin)
            print(f"transformers: {case.clients} clients {found[case.clients]:.1f} tokens/s", flush=True)
        return found
    finally:
        manager.stop(block=True, timeout=PATIENCE_SECONDS)
        del model
        _give_back(device)


def _cells(device: str, cases: list[Case]) -> dict[str, Any]:
    """Returns cache bounds for a CPU, where transformers would take all memory; on a GPU it chooses them itself."""
    if device == "cuda":
        return {}
    bounds = _LIBRARY.generation.ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=256)
    return {"continuous_batching_config": bounds}


def _drive(manager: Any, case: Case, requests: int) -> int:
    """Keeps a request of each client running until `requests` are answered; returns the number of tokens."""
    sent = done = tokens = 0
    vocabulary = 1000  # random tokens below this; every shape has at least as many

    def ask() -> None:
        prompt = torch.randint(0, vocabulary, (case.prompt_tokens,)).tolist()
        manager.add_request(prompt, max_new_tokens=case.output_tokens)

    for _ in range(min(case.clients, requests)):
        ask()
        sent += 1
    deadline = time.monotonic() + PATIENCE_SECONDS
    while done < requests:
        result = manager.get_result(timeout=1.0)
        if result is None:
            if not manager.is_running() or time.monotonic() > deadline:
                sys.exit("transformers' continuous batching has ended, or answers nothing")
            continue
        if result.error:
            sys.exit(f"transformers' continuous batching: {result.error}")
        if not result.is_finished():
            continue
        done += 1
        tokens += len(result.generated_tokens)
        if sent < requests:
            ask()
            sent += 1
    return tokens


def _floor(shape: Any, case: Case, bandwidth: float, expert_bytes: float) -> float:
    """Estimates tokens/s if a step only took its memory reads; `expert_bytes` is the size of one expert weight."""
    hidden, heads = shape.hidden_size, shape.head_dim
    attention = hidden * heads * (2 * shape.num_attention_heads + 2 * shape.num_key_value_heads)
    expert = 3 * hidden * shape.intermediate_size * expert_bytes
    # Each sequence draws its experts independently; together they need fewer than all of them.
    missed = (1 - shape.num_experts_per_tok / shape.num_local_experts) ** case.clients
    needed = shape.num_local_experts * (1 - missed)
    weights = shape.num_hidden_layers * (2 * attention + needed * expert) + 2 * hidden * shape.vocab_size
    middle = case.prompt_tokens + case.output_tokens / 2
    cells = sum(min(middle, shape.sliding_window) if "sliding" in kind else middle for kind in shape.layer_types)
    keys = case.clients * cells * 2 * 2 * shape.num_key_value_heads * heads
    return float(case.clients * bandwidth / (weights + keys))


def _bandwidth(device: str) -> float:
    """Measures the bytes that a copy reads and writes per second."""
    source = torch.zeros((4 << 30) if device == "cuda" else (64 << 20), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    _wait(device)
    begin = time.perf_counter()
    for _ in range(_COPIES):
        target.copy_(source)
    _wait(device)
    return 2 * _COPIES * source.numel() / (time.perf_counter() - begin)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _memory(device: str) -> str:
    return f", {torch.cuda.memory_allocated() / 2**30:.1f} GiB on the GPU" if device == "cuda" else ""


def _give_back(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
