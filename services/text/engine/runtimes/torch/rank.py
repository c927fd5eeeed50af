"""A process that holds one share of a divided model. The engine, which is the first rank, starts it.

Orders arrive on the standard input, length-prefixed: the model to load as JSON, then the size of the cache, then
batches. The process ends when its input ends, so that no orphan remains. Ranks exchange results by torch's collectives;
nothing is sent back.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, BinaryIO

import torch

from services.text.engine.messages import EngineOptions
from services.text.engine.runtimes.torch.executor import Executor
from services.text.engine.runtimes.torch.packing import Batch
from services.text.engine.runtimes.torch.parallel import Ranks, join, leave
from services.text.engine.runtimes.torch.weights import read_config
from services.worker.messages import EngineError

_LENGTH = struct.Struct("=Q")

log = logging.getLogger("rank")


class RankGroup:
    """The other ranks, held by the first one. If one of them dies, this process ends: no step could finish."""

    def __init__(self, options: EngineOptions, device: torch.device) -> None:
        """Starts the other processes and joins their group."""
        self._folder = tempfile.TemporaryDirectory(prefix="allm-ranks-")
        self._closing = False
        count = options.tensor_parallel
        self.ranks = Ranks(0, count)
        meeting = Path(self._folder.name) / "meeting"
        self._processes = [self._start(options, rank, meeting) for rank in range(1, count)]
        join(self.ranks, meeting, device)

    def allocate(self, pages: int, sequences: int) -> None:
        """Makes the other ranks allocate their caches."""
        self._broadcast(json.dumps([pages, sequences]).encode())

    def run(self, batch: Batch) -> None:
        """Makes the other ranks compute their part of a batch."""
        self._broadcast(batch.to_bytes())

    def close(self) -> None:
        """Stops the other ranks."""
        self._closing = True
        for process in self._processes:
            if process.stdin:
                process.stdin.close()
        for process in self._processes:
            process.wait()
        leave()
        self._folder.cleanup()

    def _start(self, options: EngineOptions, rank: int, meeting: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        order = {"options": dataclasses.asdict(options), "rank": rank, "meeting": str(meeting)}
        self._send(process, json.dumps(order).encode())
        threading.Thread(target=self._watch, args=(process, rank), name=f"rank {rank}", daemon=True).start()
        return process

    def _watch(self, process: subprocess.Popen[bytes], rank: int) -> None:
        code = process.wait()
        if not self._closing:
            log.error("rank %d of the model has ended with %d: this worker ends too", rank, code)
            os._exit(1)

    def _broadcast(self, message: bytes) -> None:
        for process in self._processes:
            self._send(process, message)

    def _send(self, process: subprocess.Popen[bytes], message: bytes) -> None:
        stream = process.stdin
        if stream is None:
            raise ValueError("a rank was started without a standard input")
        stream.write(_LENGTH.pack(len(message)) + message)
        stream.flush()


def main() -> None:
    """Loads this rank's share of the model and computes the batches that it receives."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    orders = sys.stdin.buffer
    first: dict[str, Any] = json.loads(_receive(orders))
    options = EngineOptions(**first["options"])
    ranks = Ranks(first["rank"], options.tensor_parallel)
    torch.set_num_threads(options.threads)
    device = rank_device(options, ranks.rank)
    join(ranks, Path(first["meeting"]), device)
    folder = Path(options.path)
    try:
        executor = Executor(folder, read_config(folder), options.dtype, device, ranks, lambda _: None)
    except EngineError as error:
        log.warning("rank %d: %s", ranks.rank, error.message)
        _receive(orders)  # the first rank most likely fails too, with a better message
        raise
    executor.allocate(*json.loads(_receive(orders)))
    while True:
        executor.run(Batch.from_bytes(_receive(orders)))


def rank_device(options: EngineOptions, rank: int) -> torch.device:
    """Returns the device of a rank: its own NVIDIA GPU, the CPU for all, or Metal for a model that is not divided.

    Raises EngineError (UNSUPPORTED) if a GPU is requested that torch cannot use.
    """
    if not options.gpu:
        return torch.device("cpu")
    if options.device in ("", "cuda") and rank < torch.cuda.device_count():
        return torch.device("cuda", rank)
    if options.device in ("", "mps") and options.tensor_parallel == 1 and torch.backends.mps.is_available():
        return torch.device("mps")
    raise EngineError("UNSUPPORTED", f"torch finds no usable GPU for rank {rank} ({options.device or 'cuda or mps'})")


def _receive(stream: BinaryIO) -> bytes:
    """Returns the next order. Ends the process at the end of the input."""
    header = stream.read(_LENGTH.size)
    size = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else -1
    message = stream.read(size) if size >= 0 else b""
    if len(message) != size:
        os._exit(0)
    return message


if __name__ == "__main__":
    main()
