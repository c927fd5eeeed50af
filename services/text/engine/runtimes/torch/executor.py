"""The executor: a model with its cache, which computes batches. Each rank of a divided model has one.

The first rank of a divided model is the engine. It starts a process for each other rank, whose program is this module.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from services.text.engine.kv_cells import BLOCK
from services.text.engine.messages import EngineOptions
from services.text.engine.runtimes.torch.attention import CacheProbe, PagedCache, UnknownCacheUse
from services.text.engine.runtimes.torch.graphs import DecodeSteps
from services.text.engine.runtimes.torch.packing import Batch, Packed, pack
from services.text.engine.runtimes.torch.parallel import Ranks, divide, join, leave
from services.text.engine.runtimes.torch.recurrence import take_over
from services.text.engine.runtimes.torch.weights import choose_dtype, load_model, pack_linears, read_config, sees
from services.worker.messages import EngineError

_LENGTH = struct.Struct("=Q")

log = logging.getLogger("rank")


class Executor:
    """A loaded model on `device`, or the share of it that belongs to this process by `ranks`."""

    def __init__(
        self,
        folder: Path,
        config: PreTrainedConfig,
        dtype: str,
        device: torch.device,
        ranks: Ranks,
        progress: Callable[[float], None],
    ) -> None:
        """Loads the model. `allocate` creates the cache.

        Raises:
            EngineError: MODEL_INVALID, UNSUPPORTED or OUT_OF_MEMORY, with the cause named.
        """
        self.device = device
        self.dtype = choose_dtype(dtype, config, device)
        self._ranks = ranks
        divided = ranks.count > 1
        where = torch.device("cpu") if divided else device
        model: Any = load_model(folder, config, self.dtype, where, progress, whole=not divided)
        with torch.inference_mode():
            if divided:
                divide(model, ranks)
                model.to(device)
            pack_linears(model)
        self._recurrent = take_over(model)
        self.model = self._model = model
        self._sees = sees(config)
        self._decoder = model.get_decoder() if self._sees else model
        window = getattr(config.get_text_config(), "sliding_window", None)
        self._windows = (int(window),) if window else ()
        self._shapes = self._probe()
        self._cache: PagedCache
        self._steps: DecodeSteps | None = None

    @property
    def is_recurrent(self) -> bool:
        """True if the model has layers with a recurrent state."""
        return bool(self._recurrent)

    @property
    def cell_bytes(self) -> int:
        """Bytes of a token's keys and values on this rank."""
        return sum(2 * heads * width for heads, width in self._shapes.values()) * self.dtype.itemsize

    def allocate_states(self, sequences: int, kept: int) -> None:
        """Allocates the recurrent states of `sequences` running sequences and `kept` cached ones.

        Raises EngineError OUT_OF_MEMORY.
        """
        try:
            for layer in self._recurrent:
                layer.allocate(sequences + kept)
        except (MemoryError, RuntimeError) as error:
            size = (sequences + kept) * sum(layer.sequence_bytes for layer in self._recurrent) / 2**30
            message = (
                f"no memory for the recurrent state of {sequences} requests (ALLM_MAX_SEQUENCES) "
                f"and of {kept} prefixes (ALLM_PREFIX_CACHE), {size:.1f} GiB"
            )
            raise EngineError("OUT_OF_MEMORY", message) from error

    def copy_state(self, source: int, target: int) -> None:
        """Copies the recurrent state of one sequence to another."""
        for layer in self._recurrent:
            layer.copy(source, target)

    def allocate(self, pages: int, sequences: int) -> None:
        """Allocates the cache, and on a GPU decoding steps of up to `sequences`. Raises EngineError OUT_OF_MEMORY."""
        try:
            self._cache = PagedCache(pages, self._shapes, self.dtype, self.device)
        except (MemoryError, RuntimeError) as error:
            size = pages * BLOCK * self.cell_bytes / 2**30
            message = f"no memory for a key-value cache of {pages * BLOCK} tokens, {size:.1f} GiB (ALLM_KV_TOKENS)"
            raise EngineError("OUT_OF_MEMORY", message) from error
        if self.device.type == "cuda" and self._ranks.count == 1 and not self.is_recurrent:
            self.use_fixed_steps(sequences, record=True)

    def use_fixed_steps(self, sequences: int, *, record: bool) -> None:
        """Makes decoding run in steps of fixed shapes, recorded as CUDA graphs if `record`."""
        self._steps = DecodeSteps(self.forward, self._windows, sequences, self.device, record=record)

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Computes the logits [wanted rows, vocabulary] of a batch; only the first rank gets rows."""
        self._cache.copy_pages(batch.copies)
        if self._steps is not None and self._steps.fits(batch):
            logits = self._steps.run(batch)
            return logits if all(batch.wanted) else logits[torch.tensor(batch.wanted, device=self.device).bool()]
        return self.forward(pack(batch, self._windows, self.device))

    def forward(self, packed: Packed) -> Tensor:
        """Computes the logits [wanted rows, vocabulary] of a packed step."""
        self._cache.plan = packed.plan
        if self._sees:
            return self._forward_seeing(packed)
        logits: Tensor = self._model(
            input_ids=packed.tokens,
            position_ids=packed.positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=packed.wanted if self._ranks.rank == 0 else packed.wanted[:0],
            pages=self._cache,
        ).logits
        return logits[0]

    def _forward_seeing(self, packed: Packed) -> Tensor:
        """Computes a step of a model that sees, from embeddings: its definition as a whole would expect pictures."""
        inputs = self._model.get_input_embeddings()(packed.tokens)
        more: dict[str, Any] = {}
        if packed.pictures:
            inputs = inputs.clone()
            for row, piece in packed.pictures:
                inputs[0, row : row + len(piece)] = piece.rows
            more = _deep(packed)
        hidden: Tensor = self._decoder(
            inputs_embeds=inputs,
            position_ids=packed.positions,
            past_key_values=self._cache,
            use_cache=True,
            pages=self._cache,
            **more,
        ).last_hidden_state
        logits: Tensor = self._model.lm_head(hidden[0, packed.wanted])
        return logits

    @torch.inference_mode()
    def _probe(self) -> dict[int, tuple[int, int]]:
        """Returns (key heads, width) of each layer with keys, as the definition itself passes them to a cache."""
        probe = CacheProbe()
        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        try:
            self._decoder(input_ids=token, position_ids=token, past_key_values=probe, use_cache=True, pages=probe)
        except UnknownCacheUse as fault:
            kind = self._model.config.model_type
            raise EngineError("UNSUPPORTED", f"the architecture {kind!r} {fault}") from fault
        return probe.shapes


def _deep(packed: Packed) -> dict[str, Any]:
    """Returns the arguments of a definition that adds parts of pictures to the outputs of its first layers."""
    deep = [(row, piece.layers) for row, piece in packed.pictures if piece.layers is not None]
    if not deep:
        return {}
    mask = torch.zeros_like(packed.tokens, dtype=torch.bool)
    for row, layers in deep:
        mask[0, row : row + layers.shape[1]] = True
    added = torch.cat([layers for _, layers in sorted(deep, key=lambda each: each[0])], 1)
    return {"visual_pos_masks": mask, "deepstack_visual_embeds": list(added)}


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
