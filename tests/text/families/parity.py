"""The reference for the torch runtime: the same model under transformers.

The rule for one answer: transformers receives the prompt and the runtime's tokens, and at every token

- all of the runtime's log-probabilities are within the tolerance of transformers',
- the runtime's token is the likeliest one, or so close to it that the tolerance could have swapped them.

So a token may differ only where the gap between the two likeliest is smaller than the tolerance. The tokens after it
are still checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.late import late

torch = late("torch")
transformers = late("transformers")


@dataclass(frozen=True)
class Generated:
    """The runtime's answer: tokens, and the log-probabilities [vocabulary] of each step."""

    tokens: list[int]
    logprobs: list[dict[int, float]]


class Reference:
    """A model under transformers, which runs each prompt alone."""

    def __init__(self, folder: Path, dtype: torch.dtype | None = None, *, packed: bool = False) -> None:
        """Loads the model. `packed`: its experts are in MXFP4."""
        dtype = dtype or torch.float32
        more = {"quantization_config": transformers.Mxfp4Config(dequantize=True)} if packed else {}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", **more
        )
        self.model.to(dtype)

    def generate(self, prompt: Sequence[int], count: int, never: Sequence[int] = ()) -> list[int]:
        """Generates `count` greedy tokens, none of them in `never`."""
        given = torch.tensor([list(prompt)])
        with torch.inference_mode():
            found = self.model.generate(
                given,
                attention_mask=torch.ones_like(given),
                do_sample=False,
                min_new_tokens=count,
                max_new_tokens=count,
                suppress_tokens=list(never) or None,
                pad_token_id=0,
            )
        tokens: list[int] = found[0, len(prompt) :].tolist()
        return tokens

    def logprobs(self, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """Returns log-probabilities [tokens, vocabulary] of each token after the prompt and the tokens before it."""
        given = torch.tensor([[*prompt, *tokens[:-1]]])
        with torch.inference_mode():
            logits = self.model(given).logits[0, len(prompt) - 1 :]
        return logits.float().log_softmax(-1)


@dataclass(frozen=True)
class Distance:
    """The distance of answers from a reference, in nats."""

    largest: float  # largest difference of all log-probabilities
    typical: float  # root mean square of the differences
    missed: float  # largest gap between the likeliest token and the token taken


def distance(reference: Reference, prompt: Sequence[int], generated: Generated, never: Sequence[int] = ()) -> Distance:
    """Returns the distance of an answer whose greedy tokens exclude `never`."""
    expected = reference.logprobs(prompt, generated.tokens)
    found = torch.tensor([[row[token] for token in range(expected.shape[1])] for row in generated.logprobs])
    off = expected - found
    expected[:, list(never)] = -torch.inf
    taken = expected.gather(1, torch.tensor(generated.tokens)[:, None])[:, 0]
    return Distance(float(off.abs().max()), float(off.pow(2).mean().sqrt()), float((expected.amax(1) - taken).max()))


def agree(generated: Generated, other: Generated, tolerance: float, never: Sequence[int] = ()) -> None:
    """Compares one answer with the same request's answer alone, up to the first token that differs.

    A token may differ where `other`'s two likeliest tokens are closer than the tolerance.
    """
    for step, (token, expected) in enumerate(zip(generated.tokens, other.tokens, strict=True)):
        row, theirs = generated.logprobs[step], other.logprobs[step]
        off = max(abs(row[each] - theirs[each]) for each in row)
        assert off <= tolerance, f"step {step}: log-probabilities differ by {off}"
        if token != expected:
            first, second = sorted((value for each, value in theirs.items() if each not in never), reverse=True)[:2]
            assert first - second <= tolerance, f"step {step}: {token} instead of {expected}, {first - second} apart"
            return
