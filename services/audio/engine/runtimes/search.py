"""Searches the likeliest tokens of a batch of windows by beam search, greedily or by sampling, as the reference does.

Rows are independent of each other, and the batch shrinks as rows finish. The rules for the next token are the
reference's too: no markup, no blank start, and timestamps in pairs that never go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from services.audio.engine.runtime import TOKEN_SECONDS, Decoded, Step
from services.audio.engine.runtimes.decoder import BatchDecoder, Cache, Memory, aligned_right
from services.audio.engine.vocabulary import WhisperVocabulary

_SHRINK = 2  # a batch shrinks when at most one in this many windows is open: that copies the sound's keys and values


class TokenRules:
    """The rules of one batch."""

    def __init__(self, vocabulary: WhisperVocabulary, step: Step, device: torch.device) -> None:
        """`step` says whether there are timestamps, and how late the first may be."""
        self._timestamps = step.timestamps
        self._eot = vocabulary.eot
        self._first = vocabulary.timestamp_begin
        self._no_timestamps = vocabulary.no_timestamps
        self._suppressed = torch.tensor(vocabulary.suppressed, device=device)
        self._blank = torch.tensor(vocabulary.blank, device=device)
        self._latest = self._first + round(step.max_initial_timestamp / TOKEN_SECONDS)
        self._times = torch.arange(self._first, vocabulary.size, device=device)

    def apply(self, logits: Tensor, written: Tensor) -> None:
        """Masks in `logits` [rows, vocabulary] the tokens that must not follow `written` [rows, tokens]."""
        if not written.shape[1]:
            logits[:, self._blank] = -torch.inf
        logits[:, self._suppressed] = -torch.inf
        if not self._timestamps:
            return
        logits[:, self._no_timestamps] = -torch.inf
        if written.shape[1]:
            self._keep_pairs(logits, written)
        else:
            logits[:, : self._first] = -torch.inf
            logits[:, self._latest + 1 :] = -torch.inf
        # A timestamp is written if all of them together are likelier than any single other token.
        times = logits[:, self._first :].logsumexp(dim=-1)
        likelier = times > logits[:, : self._first].amax(dim=-1)
        logits[:, : self._first].masked_fill_(likelier[:, None], -torch.inf)

    def _keep_pairs(self, logits: Tensor, written: Tensor) -> None:
        is_time = written >= self._first
        last = is_time[:, -1]
        before = is_time[:, -2] if written.shape[1] > 1 else torch.ones_like(last)
        # Text follows a pair or the first timestamp; another timestamp or the end follows a single one.
        logits[:, self._first :].masked_fill_((last & before)[:, None], -torch.inf)
        logits[:, : self._eot].masked_fill_((last & ~before)[:, None], -torch.inf)
        # Timestamps never go back, and a phrase takes some time; but the second of a pair may equal the first.
        latest = torch.where(is_time, written, 0).amax(dim=-1)
        lowest = torch.where(last & ~before, latest, latest + 1)
        logits[:, self._first :].masked_fill_(self._times < lowest[:, None], -torch.inf)


@dataclass(slots=True)
class _Path:
    """One candidate text of a window."""

    tokens: list[int]
    logprob: float  # sum over all tokens


@dataclass(slots=True)
class _Window:
    """One window of the batch and its results."""

    index: int
    limit: int  # most tokens
    no_speech_prob: float
    paths: list[_Path]
    ended: list[_Path] = field(default_factory=list)
    done: bool = False

    def best(self) -> Decoded:
        """Returns the path with the highest mean logprob; the end counts in the sum and not in the length."""
        paths = self.ended or self.paths
        found = max(paths, key=lambda path: path.logprob / max(1, len(path.tokens)))
        return Decoded(found.tokens, found.logprob / (len(found.tokens) + 1), self.no_speech_prob)


class Search:
    """The search over one batch."""

    def __init__(self, decoder: BatchDecoder, vocabulary: WhisperVocabulary, context: int, step: Step) -> None:
        """`context` is the limit of prompt and text tokens together."""
        self._decoder = decoder
        self._vocabulary = vocabulary
        self._context = context
        self._step = step
        self._sampled = step.temperature > 0
        self._width = step.best_of if self._sampled else step.beam_size

    @torch.inference_mode()
    def run(self, memory: Memory, prompts: Sequence[Sequence[int]]) -> list[Decoded]:
        """Decodes each window of `memory` after its prompt."""
        device = memory.layers[0][0].device
        self._rules = TokenRules(self._vocabulary, self._step, device)
        self._random = torch.Generator(device).manual_seed(self._step.seed)
        tokens, starts = aligned_right(prompts, device)
        limits = [max(1, min(self._step.max_tokens, self._context + 1 - len(prompt))) for prompt in prompts]
        cache = self._decoder.cache(starts, tokens.shape[1] + max(limits))
        states = self._decoder.step(tokens, cache, memory)
        silent = self._no_speech(states, starts, prompts)
        windows = [
            _Window(index, limit, no_speech, [_Path([], 0.0)])
            for index, (limit, no_speech) in enumerate(zip(limits, silent, strict=True))
        ]
        self._search(list(windows), self._decoder.logits(states[:, -1]), cache, memory)
        return [window.best() for window in windows]

    def _no_speech(self, states: Tensor, starts: Tensor, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Returns each window's probability of no speech, which the model predicts at the start of transcript."""
        places = torch.tensor([list(prompt).index(self._vocabulary.sot) for prompt in prompts], device=starts.device)
        rows = torch.arange(len(starts), device=starts.device)
        logits = self._decoder.logits(states[rows, starts + places])
        probabilities: list[float] = logits.softmax(dim=-1)[:, self._vocabulary.no_speech].tolist()
        return probabilities

    def _search(self, windows: list[_Window], logits: Tensor, cache: Cache, memory: Memory) -> None:
        """Runs until every window is done. `windows` are those of `memory`, also when they are done."""
        while True:
            rows = self._advance(windows, logits)
            going = [place for place, window in enumerate(windows) if not window.done]
            if not going:
                return
            if len(going) * _SHRINK <= len(windows):
                memory = memory.rows(torch.tensor(going, device=logits.device))
                windows = [windows[place] for place in going]
                rows = [rows[place] for place in going]
            sources = [source for chosen in rows for source in chosen]
            if sources != list(range(len(cache.starts))):
                cache.select(torch.tensor(sources, device=logits.device))
            last = [[path.tokens[-1]] for window in windows for path in window.paths]
            states = self._decoder.step(torch.tensor(last, device=logits.device), cache, memory)
            logits = self._decoder.logits(states[:, -1])

    def _advance(self, windows: list[_Window], logits: Tensor) -> list[list[int]]:
        """Adds a token to the paths of all windows. Returns, for each window, the cache rows that its paths extend."""
        written = torch.tensor([path.tokens for window in windows for path in window.paths], device=logits.device)
        self._rules.apply(logits, written.reshape(len(logits), -1).long())
        logprobs = logits.log_softmax(dim=-1)
        if self._sampled or self._width == 1:
            chosen = self._draw(logits, len(windows)) if self._sampled else logits.argmax(dim=-1, keepdim=True)
            likely = logprobs.gather(1, chosen)
        else:
            likely, chosen = logprobs.topk(self._width + 1, dim=-1)
        tokens, values = chosen.tolist(), likely.tolist()
        rows: list[list[int]] = []
        first = 0
        for window in windows:
            mine = slice(first, first + len(window.paths))
            if window.done:
                sources = self._wait(window)
            elif self._sampled or self._width == 1:
                sources = self._extend_samples(window, tokens[mine], values[mine])
            else:
                sources = self._extend_beams(window, tokens[mine], values[mine])
            rows.append([first + source for source in sources])
            first = mine.stop
        return rows

    def _draw(self, logits: Tensor, windows: int) -> Tensor:
        """Draws tokens from `logits` [rows, vocabulary]: one each; at the beginning one for each sample."""
        count = self._width if len(logits) == windows and self._width > 1 else 1
        probabilities = (logits / self._step.temperature).softmax(dim=-1)
        return torch.multinomial(probabilities, count, replacement=True, generator=self._random)

    def _extend_samples(self, window: _Window, tokens: list[list[int]], values: list[list[float]]) -> list[int]:
        """Extends each path by its own token; at the beginning, the only path becomes one path for each token."""
        sources = [(row, at) for row in range(len(tokens)) for at in range(len(tokens[row]))]
        paths = []
        for row, at in sources:
            path = window.paths[row]
            if path.tokens and path.tokens[-1] == self._vocabulary.eot:
                paths.append(_Path([*path.tokens, self._vocabulary.eot], path.logprob))  # it waits for the others
            else:
                paths.append(_Path([*path.tokens, tokens[row][at]], path.logprob + values[row][at]))
        window.paths = paths
        ended = [path.tokens[-1] == self._vocabulary.eot for path in paths]
        if all(ended) or len(paths[0].tokens) >= window.limit:
            window.ended = [self._without_end(path) for path in paths]
            window.done = True
        return [row for row, _ in sources]

    def _extend_beams(self, window: _Window, tokens: list[list[int]], values: list[list[float]]) -> list[int]:
        """Keeps the likeliest continuations that do not end, and records those above them that do."""
        candidates = [
            (path.logprob + value, row, token)
            for row, path in enumerate(window.paths)
            for token, value in zip(tokens[row], values[row], strict=True)
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        paths: list[_Path] = []
        sources: list[int] = []
        for logprob, row, token in candidates:
            before = window.paths[row].tokens
            if token == self._vocabulary.eot:
                if len(window.ended) < self._width:
                    window.ended.append(_Path(before, logprob))
                continue
            paths.append(_Path([*before, token], logprob))
            sources.append(row)
            if len(paths) == self._width:
                break
        window.paths = paths
        if len(window.ended) >= self._width or len(paths[0].tokens) >= window.limit:
            missing = self._width - len(window.ended)
            window.ended += paths[: max(0, missing)]
            window.done = True
        return sources

    def _wait(self, window: _Window) -> list[int]:
        """Extends a finished window with end tokens while it is still in the batch."""
        window.paths = [_Path([*path.tokens, self._vocabulary.eot], path.logprob) for path in window.paths]
        return list(range(len(window.paths)))

    def _without_end(self, path: _Path) -> _Path:
        end = self._vocabulary.eot
        return _Path(path.tokens[: path.tokens.index(end)] if end in path.tokens else path.tokens, path.logprob)
