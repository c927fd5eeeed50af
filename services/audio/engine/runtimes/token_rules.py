"""Rules for the next token of a Whisper model, as in the reference: no markup, no blank start, and timestamps in pairs
that never go back. They apply to a whole batch."""

from __future__ import annotations

import torch
from torch import Tensor

from services.audio.engine.runtime import TOKEN_SECONDS, Step
from services.audio.engine.vocabulary import WhisperVocabulary


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
