"""Memory shape from a GGUF header: heads per layer, separate head widths, recurrent layers."""

from __future__ import annotations

from services.models.formats.gguf_header import GgufHeader, read_header
from services.text.gguf_shape import GgufShape
from tests.demo_model import demo_model


def shape(lists: dict[str, tuple[int, ...]] | None = None, **numbers: int) -> GgufShape:
    metadata = {"general.architecture": "x", **{f"x.{name.replace('__', '.')}": each for name, each in numbers.items()}}
    for name, each in (lists or {}).items():
        metadata[f"x.{name}"] = len(each)
    return GgufShape(GgufHeader(metadata, 0, 0, 0, {f"x.{name}": each for name, each in (lists or {}).items()}))


def test_the_demo_model() -> None:
    found = GgufShape(read_header(demo_model()))
    assert found.cell_bytes == 30 * 3 * (64 + 64) * 2
    assert (found.width, found.inner, found.vocabulary, found.context_tokens) == (576, 1536, 49152, 8192)
    assert found.state_bytes == 0


def test_heads_of_each_layer_are_added_up() -> None:
    sizes = {"block_count": 3, "embedding_length": 64, "attention__head_count": 4}
    assert shape({"attention.head_count_kv": (2, 0, 1)}, **sizes).cell_bytes == 3 * (16 + 16) * 2
    assert shape(**sizes).cell_bytes == 3 * 4 * (16 + 16) * 2, "no groups: as many as query heads"
    wide = shape(**sizes, attention__head_count_kv=2, attention__key_length=32, attention__value_length=24)
    assert wide.cell_bytes == 3 * 2 * (32 + 24) * 2


def test_only_layers_without_heads_have_a_state() -> None:
    sizes = {
        "block_count": 3,
        "embedding_length": 64,
        "attention__head_count": 4,
        "ssm__inner_size": 128,
        "ssm__state_size": 16,
        "ssm__group_count": 2,
        "ssm__conv_kernel": 4,
    }
    one = (128 * 16 + 3 * (128 + 2 * 2 * 16)) * 4
    assert shape({"attention.head_count_kv": (0, 2, 0)}, **sizes).state_bytes == 2 * one
    assert shape(**sizes).state_bytes == 3 * one


def test_a_header_that_says_nothing_needs_nothing() -> None:
    found = shape()
    assert (found.cell_bytes, found.state_bytes, found.width, found.vocabulary) == (0, 0, 0, 0)
