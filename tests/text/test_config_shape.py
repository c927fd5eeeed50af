"""Memory shape from a config.json: attention of several kinds, recurrent layers, and incomplete files."""

from __future__ import annotations

import json
from pathlib import Path

from services.text.config_shape import ConfigShape


def shape(folder: Path, **config: object) -> ConfigShape:
    (folder / "config.json").write_text(json.dumps(config))
    return ConfigShape(folder)


def test_grouped_heads_of_every_layer(tmp_path: Path) -> None:
    found = shape(
        tmp_path,
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        max_position_embeddings=8192,
        dtype="bfloat16",
    )
    assert found.cell_numbers == 2 * 3 * 64 * 30
    assert (found.stored, found.inner, found.embedding, found.context_tokens) == (2, 1536, 49152 * 576, 8192)
    assert found.state_bytes == 0


def test_a_head_may_have_a_width_of_its_own_and_a_model_no_groups(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert shape(tmp_path, **sizes, head_dim=128, num_key_value_heads=2).cell_numbers == 2 * 2 * 128 * 2
    assert shape(tmp_path, **sizes).cell_numbers == 2 * 4 * 16 * 2


def test_only_the_attending_layers_of_a_hybrid_have_cells_and_only_the_recurrent_ones_states(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 32,
        "n_groups": 2,
        "conv_kernel": 4,
        "torch_dtype": "bfloat16",
    }
    one = 8 * 16 * 32 * 4 + (8 * 16 + 2 * 2 * 32) * 4 * 2
    for kinds in (
        {"hybrid_override_pattern": "M-M*ME"},
        {"layers_block_type": ["mamba", "mlp", "mamba", "attention", "mamba", "moe"]},
        {"layer_types": ["linear_attention", "mlp", "linear_attention", "full_attention", "linear_attention", "moe"]},
    ):
        found = shape(tmp_path, **sizes, **kinds)
        assert found.state_bytes == 3 * one, kinds
        assert found.cell_numbers == 2 * 2 * 16, kinds


def test_the_text_part_of_a_model_of_several_is_what_counts(tmp_path: Path) -> None:
    inner = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "dtype": "float16"}
    found = shape(tmp_path, hidden_size=9999, text_config=inner)
    assert (found.width, found.stored) == (32, 2)


def test_what_is_not_said_or_is_no_number_counts_as_none(tmp_path: Path) -> None:
    found = shape(tmp_path, hidden_size="many", num_attention_heads=-3, num_hidden_layers=True, vocab_size=None)
    assert (found.width, found.layers, found.cell_numbers, found.embedding) == (0, 0, 0, 0)
    (tmp_path / "config.json").write_text("[]")
    assert ConfigShape(tmp_path).cell_numbers == 0
