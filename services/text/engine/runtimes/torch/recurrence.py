"""Mamba-2 layers for sequences of any lengths that are packed into one row of tokens.

Such a layer has a state of fixed size per sequence: the last inputs of its convolution, and a matrix for each head (the
scan's state). Both are held here by sequence id, independent of the sequence's cells in the key-value cache. States are
never freed: a span that begins at position 0 begins with an empty state. A state cannot be shared in part or cut; as a
whole it can be copied to another sequence, which then continues from it.

For each token and head, with dt = softplus(the token's dt + dt_bias) and B, C of the head's group, the layer computes
`state = state * exp(-exp(A_log) * dt) + dt * x * B` and `y = state * C + D * x`. Decoding tokens use these formulas
directly, for all sequences together. Chunks of prompts are computed one sequence after the other, in pieces of `_PIECE`
tokens: within a piece, a matrix relates every token to those before it, as in attention, and the state passes from
piece to piece. All of it is in float32, so that the state of a long answer does not drift.

Only the model's `time_step_limit` bounds dt, in prompts and answers alike: the result must not depend on how a prompt
is cut into chunks, nor on a restart of the request. (transformers 5.23 raises the dt of prompts, but not of answers, to
`time_step_min`, which bounds the initialisation; published implementations do not.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, silu, softplus

from services.text.engine.runtimes.torch.attention import CacheProbe, Chunk, Decode, PagedCache
from services.worker.messages import EngineError

ARCHITECTURES = frozenset({"nemotron_h"})  # architectures whose recurrent layers this module implements
_PIECE = 64  # prompt tokens per matrix


def take_over(model: Any) -> list[Mamba2]:
    """Replaces the Mamba-2 mixers of a model of `ARCHITECTURES`. Returns the new ones; `allocate` must follow.

    Raises:
        EngineError: MODEL_INVALID if the numbers of its configuration are inconsistent.
    """
    config = model.config.get_text_config()
    if config.model_type not in ARCHITECTURES:
        return []
    if config.mamba_num_heads % config.n_groups:
        message = f"{config.mamba_num_heads} heads of Mamba-2 are not a multiple of n_groups, {config.n_groups}"
        raise EngineError("MODEL_INVALID", message)
    if len(config.time_step_limit) != 2:
        raise EngineError("MODEL_INVALID", "time_step_limit in config.json is not two numbers")
    found = []
    for layer in model.model.layers:
        if layer.block_type == "linear_attention":
            layer.mixer = Mamba2(layer.mixer, config.time_step_limit)
            found.append(layer.mixer)
    return found


class Mamba2(nn.Module):
    """A replacement for a definition's mixer, with its weights and the state of each sequence."""

    def __init__(self, mixer: Any, limit: tuple[float, float]) -> None:
        """`limit` is the minimum and maximum dt."""
        super().__init__()
        self._mixer = mixer
        self._limit = limit
        self._heads, self._width = int(mixer.num_heads), int(mixer.head_dim)
        self._groups, self._size = int(mixer.n_groups), int(mixer.ssm_state_size)
        self._features = int(mixer.conv_dim)
        self._reach = int(mixer.conv_kernel_size) - 1  # earlier inputs that the convolution reads
        self._inputs: Tensor  # [sequences, features, reach], in the model's precision
        self._states: Tensor  # [sequences, heads, width, size]

    @property
    def sequence_bytes(self) -> int:
        """Bytes of the state of one sequence."""
        inputs = self._features * self._reach * self._mixer.conv1d.weight.dtype.itemsize
        return int(inputs + self._heads * self._width * self._size * torch.float32.itemsize)

    def allocate(self, sequences: int) -> None:
        """Allocates the states of `sequences` sequences."""
        weight = self._mixer.conv1d.weight
        self._inputs = weight.new_zeros(sequences, self._features, self._reach)
        self._states = weight.new_zeros(sequences, self._heads, self._width, self._size, dtype=torch.float32)

    @torch.inference_mode()
    def copy(self, source: int, target: int) -> None:
        """Copies the state of the sequence `source` to `target`."""
        self._inputs[target] = self._inputs[source]
        self._states[target] = self._states[source]

    def forward(self, hidden_states: Tensor, *, pages: PagedCache | CacheProbe | None = None, **_: Any) -> Tensor:
        """Computes packed tokens [1, tokens, hidden] by the plan of `pages`."""
        if isinstance(pages, CacheProbe):
            return torch.zeros_like(hidden_states)
        if pages is None:
            raise ValueError("a packed layer with recurrent state needs the plan of its step")
        mixer, plan = self._mixer, pages.plan
        inner = self._heads * self._width
        gate, inputs, dt = torch.split(mixer.in_proj(hidden_states)[0], [inner, self._features, self._heads], dim=-1)
        dt = softplus(dt.float() + mixer.dt_bias.float()).clamp(*self._limit)
        out = torch.empty(len(inputs), inner, dtype=torch.float32, device=inputs.device)
        if plan.decode is not None:
            place = slice(0, plan.decode.count)
            out[place] = self._decode(inputs[place], dt[place], plan.decode)
        for chunk in plan.chunks:
            place = slice(chunk.row, chunk.row + chunk.tokens)
            out[place] = self._chunk(inputs[place], dt[place], chunk)
        contextualised: Tensor = mixer.out_proj(mixer.norm(out, gate).to(hidden_states.dtype))
        return contextualised[None]

    def _decode(self, inputs: Tensor, dt: Tensor, decode: Decode) -> Tensor:
        """Computes [sequences, heads * width] for each newest token: inputs [sequences, features], dt [.., heads]."""
        places = decode.sequences
        if places is None:
            raise ValueError("a layer with recurrent state does not know the sequences of its tokens")
        new = (decode.positions == 0)[:, None, None]
        window = torch.cat([self._inputs[places].masked_fill(new, 0), inputs[:, :, None]], 2)
        self._inputs[places] = window[:, :, 1:]
        mixed = (window.float() * self._mixer.conv1d.weight.float()[:, 0]).sum(2)
        x, b, c = self._parts(mixed)
        state = self._states[places].masked_fill(new[..., None], 0)
        state = state * torch.exp(dt * self._rates)[..., None, None]
        state += (dt[..., None] * x)[..., None] * b[:, :, None]
        self._states[places] = state
        out: Tensor = torch.matmul(state, c[..., None])[..., 0] + self._mixer.D.float()[:, None] * x
        return out.flatten(1)

    def _chunk(self, inputs: Tensor, dt: Tensor, chunk: Chunk) -> Tensor:
        """Computes [tokens, heads * width] for one sequence: inputs [tokens, features], dt [tokens, heads]."""
        earlier, state = self._inputs[chunk.sequence], self._states[chunk.sequence]
        if chunk.start == 0:
            earlier, state = torch.zeros_like(earlier), torch.zeros_like(state)
        window = torch.cat([earlier, inputs.T], 1)
        self._inputs[chunk.sequence] = window[:, window.shape[1] - self._reach :]
        mixed = conv1d(window.float()[None], self._mixer.conv1d.weight.float(), groups=self._features)[0].T
        x, b, c = self._parts(mixed)
        parts = []
        for at in range(0, chunk.tokens, _PIECE):
            piece = slice(at, at + _PIECE)
            part, state = _scan(x[piece], b[piece], c[piece], dt[piece], dt[piece] * self._rates, state)
            parts.append(part)
        self._states[chunk.sequence] = state
        out: Tensor = torch.cat(parts) + self._mixer.D.float()[:, None] * x
        return out.flatten(1)

    def _parts(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits convolved inputs [tokens, features] into x [tokens, heads, width], B and C [tokens, heads, size]."""
        if self._mixer.conv1d.bias is not None:
            mixed = mixed + self._mixer.conv1d.bias.float()
        inner, grouped = self._heads * self._width, self._groups * self._size
        x, b, c = torch.split(silu(mixed), [inner, grouped, grouped], dim=1)
        each = self._heads // self._groups
        b, c = (part.reshape(-1, self._groups, self._size).repeat_interleave(each, 1) for part in (b, c))
        return x.reshape(-1, self._heads, self._width), b, c

    @property
    def _rates(self) -> Tensor:
        """Logarithm of the decay of a state per unit of dt: [heads]."""
        rates: Tensor = -torch.exp(self._mixer.A_log.float())
        return rates


def _scan(x: Tensor, b: Tensor, c: Tensor, dt: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Computes one piece of a prompt, without D: y [tokens, heads, width] and the state after it.

    x [tokens, heads, width], b and c [tokens, heads, size], dt and decay [tokens, heads], state [heads, width, size].
    """
    x, b, c = (part.transpose(0, 1) for part in (x * dt[..., None], b, c))
    sums = decay.T.cumsum(1)  # [heads, tokens]
    between = _between(decay.T)
    weights = torch.matmul(c, b.transpose(1, 2)) * between
    y = torch.matmul(weights, x) + torch.matmul(c, state.transpose(1, 2)) * sums.exp()[..., None]
    left = x * between[:, -1, :, None]  # the part of each token that remains at the end
    state = state * sums[:, -1].exp()[:, None, None] + torch.matmul(left.transpose(1, 2), b)
    return y.transpose(0, 1), state


def _between(decay: Tensor) -> Tensor:
    """Returns the part of token s that remains at token l [heads, l, s], by decays [heads, tokens]; 0 if s > l.

    Each sum is computed separately, because a difference of two large sums would lose small values.
    """
    tokens = decay.shape[1]
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=decay.device).tril(-1)
    sums = decay[:, :, None].expand(-1, -1, tokens).masked_fill(~later, 0).cumsum(1)
    return sums.exp().tril()
