"""Packed experts in Triton's interpreter, against their unpacked weights; and the model that is made of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.late import late
from tests.text.families.published_configs import GPT_OSS, MXFP4
from tests.text.families.random_models import write_model, write_packed

packed_experts = late("services.text.engine.runtimes.torch.packed_experts")

# The layers of gpt-oss-20b and 120b are 2880 wide inside and out. The interpreter takes minutes for a whole one, so a
# tile of each of its two products is computed with its whole length; the others have few experts or many tokens.
WIDTH, TILE = 2880, 32
LAYERS = {
    "gate and up of gpt-oss, a token": (2, WIDTH, TILE, 1, 1),
    "gate and up of gpt-oss, a tile of tokens": (1, WIDTH, TILE, 2, 1),
    "down of gpt-oss, a token": (2, TILE, WIDTH, 1, 1),
    "down of gpt-oss, a tile of tokens": (1, TILE, WIDTH, 2, 1),
    "the experts of gpt-oss-20b": (32, 32, 32, 9, 4),
    "the experts of gpt-oss-120b": (128, 32, 32, 2, 4),
    "large tiles of tokens, some of them empty": (4, 64, 32, 70, 2),
    "rows that fill no tile": (3, 96, 160, 1, 2),
}
TOLERANCE = 8e-3  # bfloat16 has eight bits, and the interpreter cuts off the others instead of rounding


def interpreted(*arguments: str) -> list[dict[str, Any]]:
    """Runs Python in Triton's interpreter and returns its lines of JSON."""
    environ = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, *arguments], env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_experts_equal_their_unpacked_weights() -> None:
    found = interpreted(
        "-m", "tests.text.engine.runtimes.torch.packed_experts_child", json.dumps(list(LAYERS.values()))
    )
    errors = {name: line["error"] for name, line in zip(LAYERS, found, strict=True)}
    assert {name: error for name, error in errors.items() if not error < TOLERANCE} == {}


def test_a_model_of_packed_experts_answers_as_the_expanded_one(tmp_path: Path) -> None:
    folder = write_packed(tmp_path / "packed", write_model(tmp_path / "plain", GPT_OSS), MXFP4)
    packed, expanded = interpreted("-m", "tests.text.engine.runtimes.torch.packed_model_child", str(folder))
    assert (packed["experts"], expanded["experts"]) == ("PackedExperts", "GptOssExperts")
    assert packed["bytes"] < expanded["bytes"]
    differences = [abs(one - other) for one, other in zip(packed["logprobs"], expanded["logprobs"], strict=True)]
    assert max(differences) < 0.2, "the activations are rounded to bfloat16"


@pytest.mark.parametrize(("capability", "tile"), [(80, 16), (90, 1), (90, 16), (90, 64)])
def test_the_kernels_compile_for_gpus(capability: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles for a GPU that is not here: Triton brings NVIDIA's assembler."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns without it
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from services.text.engine.runtimes.torch.packed_experts import TILES

    rows, step, warps, stages = TILES[tile]
    constants = {"groups": WIDTH // 32, "ROWS": rows, "TOKENS": tile, "STEP": step, "DTYPE": packed_experts.DTYPE}
    pointers = {"blocks": "*u8", "scales": "*u8", "x": "*i32", "bias": "*bf16", "weights": "*bf16", "order": "*i32"}
    for kernel, out in ((packed_experts.gate_up, "*bf16"), (packed_experts.down, "*fp32")):
        kinds = pointers | {"slots": "*i32", "out": out, "alpha": "fp32", "limit": "fp32"}
        kinds |= dict.fromkeys(constants, "constexpr")
        names = kernel.arg_names
        source = ASTSource(
            kernel,
            {name: kinds.get(name, "i32") for name in names},
            constexprs={(names.index(name),): value for name, value in constants.items()},
        )
        options = {"num_warps": warps, "num_stages": stages}
        made = compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        assert made.metadata.shared < 99 * 1024, "the shared memory of a small GPU"
