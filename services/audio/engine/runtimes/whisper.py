"""The `whisper` runtime: openai-whisper's model with its own batched decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import gelu, pad
from whisper.model import AudioEncoder, LayerNorm, TextDecoder

from services.audio.engine.messages import EngineOptions, WhisperReady
from services.audio.engine.runtime import Aligned, Decoded, Floats, Step, in_groups
from services.audio.engine.runtimes.checkpoint import Checkpoint, read_checkpoint
from services.audio.engine.runtimes.decoder import BatchDecoder, Memory
from services.audio.engine.runtimes.search import Search
from services.worker.messages import EngineError, error_line

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class OpenAIWhisper:
    """A loaded model. Only its vocabulary is thread-safe."""

    shortest_frames = 1
    lanes = 1  # torch distributes its threads over the operations of one call

    def __init__(self, options: EngineOptions, progress: Callable[[float], None]) -> None:
        """Loads an OpenAI checkpoint, or a transformers folder of safetensors.

        Raises:
            EngineError: MODEL_INVALID, UNSUPPORTED or OUT_OF_MEMORY; the message names the cause.
        """
        torch.set_num_threads(max(1, options.threads))
        self._device = _device(options)
        self._dtype = _dtype(options)
        stored = read_checkpoint(Path(options.path))
        self.vocabulary = stored.vocabulary
        self.n_mels = stored.dimensions.n_mels
        self.context_tokens = stored.dimensions.n_text_ctx
        self._heads = stored.alignment_heads
        progress(0.1)
        try:
            self._encoder, decoder = self._build(stored)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise EngineError(
                "OUT_OF_MEMORY", f"the weights of {stored.source} do not fit: {error_line(error)}"
            ) from error
        self._decoder = BatchDecoder(decoder, stored.dimensions.n_text_head)
        self.ready = WhisperReady(
            languages=self.vocabulary.languages,
            multilingual=self.vocabulary.multilingual,
            batch_windows=options.most_windows,
        )
        self.encode_windows = self.ready.batch_windows if options.gpu else 1
        progress(1.0)

    def encode(self, mels: Floats) -> list[Tensor]:
        """Returns handles of windows, one for each of `mels` [windows, n_mels, frames]: [frames / 2, state]."""
        with _computing():
            return list(_encode(self._encoder, torch.from_numpy(mels).to(self._device, self._dtype)))

    def detect(self, windows: Sequence[Tensor]) -> list[tuple[str, float]]:
        """Returns the likeliest language of each window, and its probability among the languages."""
        codes = self.vocabulary.languages
        first = self.vocabulary.language_token(codes[0])

        def compute(members: list[int]) -> Iterable[tuple[str, float]]:
            memory = self._memory(windows, members)
            tokens = torch.full((len(members), 1), self.vocabulary.sot, device=self._device)
            cache = self._decoder.cache(torch.zeros_like(tokens[:, 0]), 1)
            logits = self._decoder.logits(self._decoder.step(tokens, cache, memory)[:, -1])
            best = logits[:, first : first + len(codes)].softmax(dim=-1).max(dim=-1)
            found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            return [(codes[index], probability) for index, probability in found]

        with _computing():
            return in_groups(map(len, windows), compute)

    def decode(self, windows: Sequence[Tensor], prompts: Sequence[Sequence[int]], step: Step) -> list[Decoded]:
        """Decodes windows of equal length together, whatever their prompts."""

        def compute(members: list[int]) -> Iterable[Decoded]:
            search = Search(self._decoder, self.vocabulary, self.context_tokens, step)
            return search.run(self._memory(windows, members), [prompts[index] for index in members])

        with _computing():
            return in_groups(map(len, windows), compute)

    def align(
        self,
        windows: Sequence[Tensor],
        starts: Sequence[Sequence[int]],
        texts: Sequence[Sequence[int]],
        frames: Sequence[int],
    ) -> list[Aligned]:
        """Aligns each window's text with its sound; windows of equal length share a batch."""
        times = [max(1, count // 2) for count in frames]
        rows = [
            [*start, self.vocabulary.no_timestamps, *text, self.vocabulary.eot]
            for start, text in zip(starts, texts, strict=True)
        ]

        def compute(members: list[int]) -> Iterable[Aligned]:
            width = max(len(rows[index]) for index in members)
            padded = [rows[index] + [self.vocabulary.eot] * (width - len(rows[index])) for index in members]
            tokens = torch.tensor(padded, device=self._device)
            most = max(times[index] for index in members)
            states, scores = self._decoder.attention(tokens, self._memory(windows, members), self._heads, most)
            return [
                self._aligned(states[place], scores[place], len(starts[index]), texts[index], times[index])
                for place, index in enumerate(members)
            ]

        with _computing():
            return in_groups(map(len, windows), compute)

    def _aligned(self, states: Tensor, scores: Tensor, start: int, text: Sequence[int], times: int) -> Aligned:
        """Aligns one row. The token before the text is `no_timestamps`; each state predicts the token after it."""
        length = start + 1 + len(text)
        logits = self._decoder.logits(states[start : length - 1])[:, : self.vocabulary.eot]
        chosen = torch.tensor(list(text), device=logits.device)
        probabilities = logits.softmax(dim=-1).gather(1, chosen[:, None])[:, 0]
        costs = attention_costs(scores[:, : length + 1, :times])[start:length]
        texts, moments = warp(costs)
        return Aligned(texts, moments, probabilities.cpu().numpy())

    def _memory(self, windows: Sequence[Tensor], members: list[int]) -> Memory:
        return self._decoder.memory(torch.stack([windows[index] for index in members]))

    def _build(self, stored: Checkpoint) -> tuple[Any, Any]:
        """Builds encoder and decoder with their weights."""
        size = stored.dimensions
        with torch.device("meta"):  # no memory for weights that are replaced immediately
            encoder = AudioEncoder(
                size.n_mels, size.n_audio_ctx, size.n_audio_state, size.n_audio_head, size.n_audio_layer
            )
            decoder = TextDecoder(size.n_vocab, size.n_text_ctx, size.n_text_state, size.n_text_head, size.n_text_layer)
        for name, module in (("encoder.", encoder), ("decoder.", decoder)):
            exact = {f"{path}." for path, part in module.named_modules() if isinstance(part, LayerNorm)}
            weights = {
                key.removeprefix(name): self._placed(key.removeprefix(name), stored.tensors.pop(key), exact)
                for key in [key for key in stored.tensors if key.startswith(name)]
            }
            try:
                module.load_state_dict(weights, assign=True)
            except RuntimeError as error:
                message = f"the weights of {stored.source} do not match its dimensions: {error_line(error)}"
                raise EngineError("MODEL_INVALID", message) from error
            module.eval().requires_grad_(False)
        if stored.tensors:
            message = f"{stored.source} has an unexpected tensor: {min(stored.tensors)[:100]}"
            raise EngineError("MODEL_INVALID", message)
        return encoder, decoder

    def _placed(self, name: str, tensor: Tensor, exact: set[str]) -> Tensor:
        """Returns a weight on the device; layer norms keep 32 bits, as openai-whisper's modules require."""
        is_exact = name[: name.rfind(".") + 1] in exact
        return tensor.to(self._device, torch.float32 if is_exact else self._dtype)


def _encode(encoder: Any, x: Tensor) -> Tensor:
    """Runs the package's encoder, whose own forward pass takes only 30 s: [windows, n_mels, frames] -> states."""
    x = gelu(encoder.conv2(gelu(encoder.conv1(x)))).transpose(1, 2)
    x = x + encoder.positional_embedding[: x.shape[1]]
    for block in encoder.blocks:
        x = block(x)
    states: Tensor = encoder.ln_post(x)
    return states


@contextmanager
def _computing() -> Iterator[None]:
    """Disables gradients and converts torch's errors into EngineError."""
    try:
        with torch.inference_mode():
            yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise EngineError("OUT_OF_MEMORY", f"a batch does not fit: {error_line(error)}") from error
    except RuntimeError as error:
        raise EngineError("INTERNAL", f"torch: {error_line(error)}") from error


def _device(options: EngineOptions) -> torch.device:
    if not options.gpu:
        return torch.device("cpu")
    if options.device in ("", "cuda") and torch.cuda.is_available():
        return torch.device("cuda")
    if options.device in ("", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    raise EngineError("UNSUPPORTED", "a GPU is requested, but torch finds no usable one")


def _dtype(options: EngineOptions) -> torch.dtype:
    """Returns the dtype; `auto` is 32 bits on a CPU, 16 on a GPU, as in openai-whisper."""
    if options.compute_type == "auto":
        return torch.float16 if options.gpu else torch.float32
    if options.compute_type not in _DTYPES:
        message = f"ALLM_AUDIO_COMPUTE_TYPE={options.compute_type}: the runtime whisper supports {', '.join(_DTYPES)}"
        raise EngineError("UNSUPPORTED", message)
    return _DTYPES[options.compute_type]


MEDIAN = 7  # columns of the median filter


def attention_costs(scores: Tensor) -> npt.NDArray[np.float64]:
    """Returns the cost of each token at each time, [tokens, times], from attention `scores` [heads, tokens, times]."""
    weights = scores.softmax(dim=-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    return (
        (-_median((weights - mean) / deviation).mean(dim=0)).cpu().double().numpy()
    )  # on the CPU: Metal has no 64 bits


def warp(costs: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the rows and the columns of the cheapest path through `costs` [rows, columns], from the first corner to
    the last, by steps to the next row, the next column or both."""
    steps = _steps(costs)
    row, column = costs.shape
    path = []
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        step = 2 if row == 0 else 1 if column == 0 else int(steps[row + column, row])
        row -= step != 2
        column -= step != 1
    rows, columns = np.array(path[::-1], dtype=np.int64).T
    return rows, columns


def _steps(costs: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    """Returns the cheapest step into each cell: 0 is diagonal, 1 from the row before, 2 from the column before.

    Indexed by [row + column, row], counted from 1. All cells of one diagonal are computed together: they depend only on
    the two diagonals before.
    """
    rows, columns = costs.shape
    steps = np.zeros((rows + columns + 1, rows + 1), dtype=np.int8)
    older = np.full(rows + 1, np.inf, dtype=np.float32)  # totals of a diagonal, by row
    old = older.copy()
    older[0] = 0
    for diagonal in range(2, rows + columns + 1):
        first, last = max(1, diagonal - columns), min(rows, diagonal - 1)
        here = np.arange(first, last + 1)
        both, above, left = older[here - 1], old[here - 1], old[here]
        step = np.where((both < above) & (both < left), 0, np.where((above < both) & (above < left), 1, 2))
        best = np.choose(step, (both, above, left))
        new = np.full(rows + 1, np.inf, dtype=np.float32)
        new[here] = costs[here - 1, diagonal - here - 1] + best
        steps[diagonal, here] = step
        older, old = old, new
    return steps


def _median(x: Tensor) -> Tensor:
    """Returns the running median over the last dimension, mirrored at the ends."""
    half = MEDIAN // 2
    if x.shape[-1] <= half:
        return x
    return pad(x, (half, half), mode="reflect").unfold(-1, MEDIAN, 1).sort(dim=-1).values[..., half]
