"""The check of one GPU: `make gpu-check`, or `python -m bench.gpu`.

    python -m bench.gpu [--out DIR] [--weights DIR] [--only PART]... [--again] [--list] [--report]

Each part runs in a process of its own, in at most eight minutes, and leaves a result in the output folder; a part that
is finished there is not repeated without `--again`. No network is needed. `--device cpu --small` runs the same code on
a processor with tiny models, to see that it works: its figures mean nothing and are not recorded.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from bench.gpu import apart, report
from bench.gpu.examination import Plan, examine
from bench.gpu.material import Place
from bench.gpu.parts import PARTS
from bench.gpu.result import Failed, Result
from bench.gpu.speed import Sizes

PART_SECONDS = 480.0
OUT = Path(__file__).parents[1] / ".build" / "gpu"
SMALL = Sizes((1, 3), 24, 8)
NAMES = [part.name for part in PARTS]


def main() -> None:
    """Runs the parts and writes the report; exits with 1 if a check failed."""
    parser = argparse.ArgumentParser(description="Checks every runtime on one GPU and writes down what it found.")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of results, made models and logs")
    parser.add_argument("--weights", type=Path, help="folder with real weights, see bench/gpu/material.py")
    parser.add_argument("--only", action="append", choices=NAMES, help="a part; may be given several times")
    parser.add_argument("--again", action="store_true", help="repeat finished parts")
    parser.add_argument("--list", action="store_true", help="name the parts")
    parser.add_argument("--report", action="store_true", help="run nothing, write the report of the results in --out")
    parser.add_argument("--device", default="cuda", choices=("cuda", "vulkan", "cpu"))
    parser.add_argument("--small", action="store_true", help="tiny models and few requests")
    parser.add_argument("--clients", help="numbers of clients, with commas")
    parser.add_argument("--part", choices=NAMES, help=argparse.SUPPRESS)  # this process runs only it
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{part.name:16} {part.runtime:16} {part.about}" for part in PARTS))
        return
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.part:
        _examine(given)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a part that runs is ended, too
    if not given.report:
        if not _device(given):
            sys.exit(1)
        for name in given.only or NAMES:
            _run(name, given)
    failed = report.write(given.out, record=given.device == "cuda" and not given.small)
    sys.exit(1 if failed else 0)


def _device(given: argparse.Namespace) -> bool:
    """Measures the device once; False if it cannot be used."""
    path = given.out / "device.json"
    if path.exists() and not given.again:
        return True
    try:
        known: dict[str, Any] = {"name": "a Vulkan device", "bytes_per_second": 0.0}  # only llama.cpp computes there
        found = known if given.device == "vulkan" else apart.ask("bandwidth", "--device", given.device)
    except Failed as failure:
        print(f"{given.device} cannot be used: {failure}")
        return False
    path.write_text(json.dumps(found | {"driver": _driver()}) + "\n", encoding="utf-8")
    print(f"{found['name']}: {found['bytes_per_second'] / 1e9:.0f} GB/s, read and written by a copy", flush=True)
    return True


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    return path.read_text(encoding="utf-8").splitlines()[0] if path.exists() else ""


def _result(given: argparse.Namespace, name: str) -> Path:
    return Path(given.out) / f"{name}.json"


def _run(name: str, given: argparse.Namespace) -> None:
    """Runs a part in a process of its own, unless it is finished."""
    path = _result(given, name)
    if path.exists() and json.loads(path.read_text(encoding="utf-8"))["finished"] and not given.again:
        print(f"{name}: finished before", flush=True)
        return
    print(f"{name}:", flush=True)
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.gpu", *sys.argv[1:], "--part", name]
    with (given.out / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stderr=log)
        try:
            ended = f"it exited with {process.wait(PART_SECONDS)}"
        except subprocess.TimeoutExpired:
            ended = f"it took longer than {PART_SECONDS:g} s"
        finally:
            _end(process)
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if document is None or not document["finished"]:
        result = Result(path, document or {})
        result.document |= {key: document[key] for key in ("checks", "figures") if document}
        with result.check("the part ends", f"{PART_SECONDS:g} s"):
            raise Failed(f"{ended}; {_last_words(given.out / f'{name}.log')}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the part and what it has started, if something of it is left."""
    if process.poll() is not None:
        return
    part = psutil.Process(process.pid)
    for each in [*part.children(recursive=True), part]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def _last_words(path: Path) -> str:
    return " ".join(path.read_text(encoding="utf-8", errors="replace").split())[-400:]


def _examine(given: argparse.Namespace) -> None:
    part = next(each for each in PARTS if each.name == given.part)
    made = given.out / "made"
    made.mkdir(exist_ok=True)
    device: dict[str, Any] = json.loads((given.out / "device.json").read_text(encoding="utf-8"))
    sizes = SMALL if given.small else Sizes()
    if given.clients:
        levels = tuple(int(one) for one in given.clients.split(","))
        sizes = Sizes(levels, sizes.prompt_tokens, sizes.output_tokens)
    place = Place(made, given.weights, given.device, given.small)
    examine(part, Plan(place, given.out, sizes, device["bytes_per_second"]), Result(_result(given, part.name), {}))


if __name__ == "__main__":
    main()
