"""The tolerances of the check, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A limit, its unit, and why it is not smaller or larger."""

    limit: float
    unit: str
    reason: str

    def __str__(self) -> str:
        limit = f"{self.limit / MIB:g} MiB" if self.unit == "bytes" else f"{self.limit:g} {self.unit}"
        return f"{limit}: {self.reason}"


TOLERANCES = {
    "logprobs": Tolerance(
        0.1,
        "nats, median",
        "16-bit numbers have a relative error of 2^-9 at each of some hundred sums: SmolLM2 in bfloat16 is 0.06 from "
        "float32 on a processor (docs/torch-runtime.md), and both devices are that far away, independently",
    ),
    "parting": Tolerance(
        0.5,
        "nats",
        "greedy answers may part only where the processor's two likeliest tokens are about as likely; a mistake in the "
        "computation parts them at gaps of several nats",
    ),
    "again": Tolerance(
        0.5,
        "nats",
        "alone and in a batch the GPU chooses other kernels, so the same near ties may break differently",
    ),
    "cosine": Tolerance(0.999, "cosine, least", "16 against 32 bits; unrelated sentences are at 0.1 to 0.3"),
    "words": Tolerance(0, "words that differ", "clear recordings leave no word of a transcript near a tie"),
    "pixels": Tolerance(3, "of 255, mean", "16 against 32 bits over 20 steps; other noise or prompts differ by 30"),
    "reckoning": Tolerance(
        1.05,
        "of the reckoning, most",
        "what is taken beyond the reckoning is not reserved, and could run another model out of memory",
    ),
    "given back": Tolerance(64 * MIB, "bytes", "the driver keeps some memory of its own; a model takes far more"),
}
