"""MXFP4 as in gpt-oss's checkpoints: two numbers per byte, and one power of two for every 32 of them.

Format: OCP Microscaling Formats (MX) Specification 1.0: FP4 E2M1 with a shared scale E8M0.
"""

from __future__ import annotations

from tests.late import late

torch = late("torch")

BLOCK = 32
VALUES = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
BIAS = 127  # of the scale's exponent
LARGEST = 6.0


def pack(experts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rounds experts [expert, in, out]. Returns blocks, scales and the rounded values, the latter in the input's shape.

    blocks: [expert, out, in / 32, 16] bytes, the first number in the low half; scales: [expert, out, in / 32] bytes.
    """
    values = torch.tensor(VALUES)
    rows = experts.float().transpose(1, 2)
    grouped = rows.unflatten(-1, (-1, BLOCK))  # [expert, out, in / 32, 32]
    highest = grouped.abs().amax(-1, keepdim=True).clamp_min(2.0**-BIAS)
    exponents = torch.ceil(torch.log2(highest / LARGEST)).clamp(-BIAS, BIAS)
    nibbles = ((grouped / 2**exponents)[..., None] - values).abs().argmin(-1).to(torch.uint8)
    blocks = nibbles[..., 0::2] | nibbles[..., 1::2] << 4
    meant = (values[nibbles.long()] * 2**exponents).flatten(-2).transpose(1, 2)
    return blocks, (exponents[..., 0] + BIAS).to(torch.uint8), meant.to(experts.dtype).contiguous()
