"""Measurements in a process of their own, so that the device's memory is free afterwards: `python -m bench.gpu.apart`.

    apart bandwidth DEVICE            the bytes that a copy reads and writes per second
    apart graphs FOLDER DEVICE ...    our engine's decoding with and without CUDA graphs
    apart peer FOLDER DEVICE ...      transformers' continuous batching

Each prints one line of JSON at the end.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from bench.gpu.result import Failed
from bench.gpu.speed import Sizes

_COPIES = 10
_STEPS = 24
PATIENCE_SECONDS = 420.0


def ask(*arguments: str, environ: dict[str, str] | None = None) -> Any:
    """Runs this module in a process of its own and returns what it found. Raises Failed with its last words."""
    command = [sys.executable, "-m", "bench.gpu.apart", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **(environ or {})},
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{arguments[0]} took longer than {PATIENCE_SECONDS:g} s") from error
    if done.returncode:
        raise Failed(f"{arguments[0]} failed: {' '.join(done.stderr.split())[-400:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Runs one measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("bandwidth", "graphs", "peer"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--clients", default="1")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    given = parser.parse_args()
    sizes = Sizes(tuple(int(one) for one in given.clients.split(",")), given.prompt_tokens, given.output_tokens)
    if given.what == "bandwidth":
        found: Any = bandwidth(given.device)
    elif given.what == "graphs":
        found = graphs(given.folder, given.device, sizes)
    else:
        found = peer(given.folder, given.device, sizes)
    print(json.dumps(found))


def bandwidth(device: str) -> dict[str, Any]:
    """Measures the bytes that a copy reads and writes per second."""
    import torch  # noqa: PLC0415 (only where it is measured)

    source = torch.zeros((4 << 30) if device == "cuda" else (64 << 20), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(_COPIES):
        _wait(device)
        begun = time.perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - begun)
    name = torch.cuda.get_device_name() if device == "cuda" else "processor"
    return {"name": name, "bytes_per_second": 2 * source.numel() / min(seconds)}


def graphs(folder: Path, device: str, sizes: Sizes) -> dict[str, Any]:
    """Decodes the same greedy answers recorded and not, in our engine; returns times and differences.

    Without a GPU both run unrecorded, in padded and in ordinary steps.
    """
    import torch  # noqa: PLC0415

    from bench.engine_load import options  # noqa: PLC0415
    from services.text.engine.runtimes.torch.engine import SafetensorsEngine  # noqa: PLC0415

    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    # A processor always expands 4-bit experts, which is a warning, too.
    whose = "services.text.engine.runtimes.torch" + ("" if device == "cuda" else ".graphs")
    logging.getLogger(whose).addHandler(handler)
    most = max(sizes.clients)
    threads = len(os.sched_getaffinity(0))
    asked = options(str(folder), most, threads=threads, gpu=device == "cuda", context=sizes.context_tokens)
    engine = SafetensorsEngine(asked, lambda _: None)
    if device != "cuda" and not engine.executor.is_recurrent:
        engine.executor.use_fixed_steps(most, record=False)
    found: dict[str, Any] = {"recurrent": engine.executor.is_recurrent, "levels": {}}
    with torch.inference_mode():
        with_graphs = {clients: _decode(engine, sizes, clients) for clients in sizes.clients}
        engine.executor.use_fixed_steps(0, record=False)  # no step fits: all are ordinary ones
        without = {clients: _decode(engine, sizes, clients) for clients in sizes.clients}
    for clients in sizes.clients:
        (on, on_ms), (off, off_ms) = with_graphs[clients], without[clients]
        same = sum(a == b for a, b in zip(on, off, strict=True))
        found["levels"][clients] = {"on_ms": on_ms, "off_ms": off_ms, "same": same, "answers": len(on)}
    found["warnings"] = warned
    return found


def _decode(engine: Any, sizes: Sizes, clients: int) -> tuple[list[list[int]], float]:
    """Returns the greedy tokens of each sequence, and the median milliseconds of a decoding step."""
    from services.text.engine.runtime import TokenSpan  # noqa: PLC0415
    from services.text.engine.sampling import SamplingParams  # noqa: PLC0415

    random = Random(clients)  # noqa: S311 (load, no secret)
    samplers = [engine.sampler(SamplingParams(temperature=0, ignore_eos=True), [], None, None) for _ in range(clients)]
    answers: list[list[int]] = []
    for number in range(clients):
        prompt = sizes.prompt(random, engine.ready.vocabulary)
        answers.append([engine.step([TokenSpan(number, 0, prompt, samplers[number])])[0][0].token])
    seconds: list[float] = []
    for step in range(_STEPS):
        place = sizes.prompt_tokens + step
        spans = [TokenSpan(number, place, [answers[number][-1]], samplers[number]) for number in range(clients)]
        begun = time.perf_counter()
        chosen = engine.step(spans)
        seconds.append(time.perf_counter() - begun)
        for answer, one in zip(answers, chosen, strict=True):
            answer.append(one[0].token)
    for number, sampler in enumerate(samplers):
        engine.free_sampler(sampler)
        engine.drop(number)
    return answers, round(1000 * sorted(seconds)[len(seconds) // 2], 3)


def peer(folder: Path, device: str, sizes: Sizes) -> dict[str, Any]:
    """Measures tokens/s of transformers' continuous batching, with its own choice of attention, cache and graphs."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    library: Any = transformers  # untyped: its types differ between releases
    library.logging.set_verbosity_error()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    more: dict[str, Any] = {}
    if "quantization_config" in config:  # packed kernels come from a hub, which is not there
        more["quantization_config"] = library.Mxfp4Config(dequantize=True)
    place = {"device_map": device} if device == "cuda" else {}
    model = library.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, local_files_only=True, **place, **more
    )
    asked = library.GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=sizes.output_tokens)
    bounds = {}
    if device != "cuda":  # it would take all memory
        bounds["continuous_batching_config"] = library.generation.ContinuousBatchingConfig(
            num_blocks=16, max_batch_tokens=256
        )
    manager = model.init_continuous_batching(generation_config=asked, **bounds)
    manager.start()
    found: dict[str, Any] = {"version": library.__version__, "levels": {}}
    try:
        for clients in sizes.clients:
            _drive(manager, sizes, clients, clients, config["vocab_size"])
            begun = time.perf_counter()
            tokens = _drive(manager, sizes, clients, sizes.requests(clients), config["vocab_size"])
            found["levels"][clients] = round(tokens / (time.perf_counter() - begun), 2)
            if device == "cuda":
                found["gib"] = round(torch.cuda.max_memory_reserved() / 2**30, 1)
    finally:
        manager.stop(block=True, timeout=30.0)
    return found


def _drive(manager: Any, sizes: Sizes, clients: int, requests: int, vocabulary: int) -> int:
    """Keeps a request of each client running until `requests` are answered; returns the number of tokens."""
    random = Random(f"{clients} {requests}")  # noqa: S311 (load, no secret)
    sent = done = tokens = 0
    deadline = time.monotonic() + PATIENCE_SECONDS
    while done < requests:
        while sent < requests and sent - done < clients:
            manager.add_request(sizes.prompt(random, vocabulary), max_new_tokens=sizes.output_tokens)
            sent += 1
        result = manager.get_result(timeout=1.0)
        if result is None:
            if not manager.is_running() or time.monotonic() > deadline:
                raise TimeoutError("transformers' continuous batching has ended, or answers nothing")
        elif result.error:
            raise RuntimeError(result.error)
        elif result.is_finished():
            done += 1
            tokens += len(result.generated_tokens)
    return tokens


def _wait(device: str) -> None:
    if device == "cuda":
        import torch  # noqa: PLC0415

        torch.cuda.synchronize()


def at(sizes: Sizes, clients: Sequence[int]) -> list[str]:
    """Returns the arguments for `sizes` at other numbers of clients."""
    levels = ",".join(str(one) for one in clients)
    return [
        "--clients",
        levels,
        "--prompt-tokens",
        str(sizes.prompt_tokens),
        "--output-tokens",
        str(sizes.output_tokens),
    ]


if __name__ == "__main__":
    main()
