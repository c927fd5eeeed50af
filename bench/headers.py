"""The time to check the headers of a model of 200 shards against their index: `python -m bench.headers`.

The bench makes a temporary folder with real headers, a real index, and weights that are holes in sparse files. It times
the whole inspection of a registration, from the list of the folder's files to the finding. The files were written just
before, so they come from the page cache, as they do when an operator has just copied a model.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from services.models.formats.inspect import inspect
from services.models.hub.source import LocalTree

SHARDS = 200
TARGET_SECONDS = 2.0
ROUNDS = 5
HIDDEN = 7168
EXPERT = 2048
# One layer's tensors in a shard, with the names and shapes of the large mixture-of-experts models.
TENSORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "input_layernorm.weight": ("BF16", (HIDDEN,)),
    "post_attention_layernorm.weight": ("BF16", (HIDDEN,)),
    "self_attn.q_a_proj.weight": ("F8_E4M3", (1536, HIDDEN)),
    "self_attn.q_b_proj.weight": ("F8_E4M3", (24576, 1536)),
    "self_attn.kv_a_proj_with_mqa.weight": ("F8_E4M3", (576, HIDDEN)),
    "self_attn.kv_b_proj.weight": ("F8_E4M3", (32768, 512)),
    "self_attn.o_proj.weight": ("F8_E4M3", (HIDDEN, 16384)),
    "mlp.gate.weight": ("BF16", (256, HIDDEN)),
    "mlp.gate.e_score_correction_bias": ("F32", (256,)),
    "mlp.experts.0.gate_proj.weight": ("F8_E4M3", (EXPERT, HIDDEN)),
    "mlp.experts.0.up_proj.weight": ("F8_E4M3", (EXPERT, HIDDEN)),
    "mlp.experts.0.down_proj.weight": ("F8_E4M3", (HIDDEN, EXPERT)),
}
_BYTES = {"BF16": 2, "F8_E4M3": 1, "F32": 4}


def write_model(folder: Path, shards: int) -> None:
    """Writes a folder of safetensors with a number of shards."""
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at = 0
        for tensor, (dtype, shape) in TENSORS.items():
            end = at + _BYTES[dtype]
            for size in shape:
                end = at + (end - at) * size
            entries[f"model.layers.{number}.{tensor}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
            weight_map[f"model.layers.{number}.{tensor}"] = name
            at = end
        header = json.dumps(entries).encode()
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + at)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")


def measure(folder: Path) -> float:
    """Returns the seconds of one inspection."""
    begin = time.perf_counter()
    found = inspect(LocalTree(folder, [folder]), "safetensors")
    seconds = time.perf_counter() - begin
    if len(found.files) != SHARDS + 3:
        raise SystemExit(f"the inspection found {len(found.files)} files instead of {SHARDS + 3}")
    return seconds


def main() -> int:
    """Measures and prints one line. Returns 1 if the slowest round missed the target."""
    with tempfile.TemporaryDirectory(prefix="allm-headers-") as name:
        folder = Path(name)
        write_model(folder, SHARDS)
        size = sum(path.stat().st_size for path in folder.iterdir())
        rounds = [measure(folder) for _ in range(ROUNDS)]
    met = max(rounds) < TARGET_SECONDS
    print(
        f"headers of {SHARDS} shards ({SHARDS * len(TENSORS)} tensors, {size / 1e9:.0f} GB): median "
        f"{median(rounds) * 1000:.0f} ms, slowest {max(rounds) * 1000:.0f} ms of {ROUNDS}; "
        f"target {TARGET_SECONDS:.0f} s: {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
