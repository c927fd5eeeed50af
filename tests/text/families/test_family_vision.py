"""Idefics3 and SmolVLM, Gemma 3, Qwen2-VL, Qwen2.5-VL, Qwen3-VL and GLM-4V with pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.late import late
from tests.text.families.published_vision_configs import (
    GEMMA3,
    GEMMA3_PIXELS,
    GEMMA3_WORDS,
    GLM4V,
    GLM4V_PIXELS,
    GLM4V_WORDS,
    GRID_PIXELS,
    IDEFICS3,
    QWEN2_VL,
    QWEN3_PIXELS,
    QWEN3_VL,
    QWEN25_VL,
    QWEN_WORDS,
    SMOLVLM,
    TILE_WORDS,
    TILES,
)
from tests.text.families.vision_checks import (
    GridProcessor,
    check_answers,
    check_bfloat16,
    check_crowd,
    check_fixed_steps,
    picture,
    pil_processor,
    seeing,
    write_seeing,
)

transformers = late("transformers")


def _tiles(folder: Path) -> Any:
    return transformers.Idefics3Processor(_pixels(folder), _words(folder), image_seq_len=4)


def _gemma(folder: Path) -> Any:
    named = dict(zip(("boi_token", "eoi_token", "image_token"), GEMMA3_WORDS, strict=True))
    return transformers.Gemma3Processor(
        _pixels(folder), _words(folder, extra_special_tokens=named), image_seq_length=16
    )


def _grid(folder: Path) -> Any:
    return GridProcessor(_pixels(folder), _words(folder))


def _pixels(folder: Path) -> Any:
    return pil_processor(folder)


def _words(folder: Path, **options: Any) -> Any:
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder, **options)


@dataclass
class Family:
    """A family: its published configuration and settings of pictures, and transformers' processor of prompts."""

    config: dict[str, Any]
    pixels: dict[str, Any]
    words: list[str]
    processor: Callable[[Path], Any]
    placeholder: str


FAMILIES = {
    "idefics3": Family(IDEFICS3, TILES, TILE_WORDS, _tiles, "<image>"),
    "smolvlm": Family(
        SMOLVLM, TILES | {"image_processor_type": "SmolVLMImageProcessor"}, TILE_WORDS, _tiles, "<image>"
    ),
    "gemma3": Family(GEMMA3, GEMMA3_PIXELS, GEMMA3_WORDS, _gemma, "<start_of_image>"),
    "qwen2_vl": Family(QWEN2_VL, GRID_PIXELS, QWEN_WORDS, _grid, "".join(QWEN_WORDS[at] for at in (0, 3, 1))),
    "qwen2_5_vl": Family(QWEN25_VL, GRID_PIXELS, QWEN_WORDS, _grid, "".join(QWEN_WORDS[at] for at in (0, 3, 1))),
    "qwen3_vl": Family(QWEN3_VL, QWEN3_PIXELS, QWEN_WORDS, _grid, "".join(QWEN_WORDS[at] for at in (0, 3, 1))),
    "glm4v": Family(GLM4V, GLM4V_PIXELS, GLM4V_WORDS, _grid, "".join(GLM4V_WORDS[at] for at in (0, 3, 1))),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_it_sees_as_transformers_does(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder = write_seeing(tmp_path / name, family.config, family.pixels, family.words)
    seen = seeing(folder, family.processor(folder), family.placeholder)
    text = f"user: {family.placeholder}\nand {family.placeholder} differ in "
    pictures = [picture(300, 130), picture(60, 200, seed=1)]
    answer = check_answers(seen, text, pictures)
    other = check_answers(seen, text, [pictures[0], picture(60, 200, seed=2)])
    assert answer.logprobs[0] != other.logprobs[0]
    check_answers(seen, "only text, without a picture, ", [])
    check_crowd(seen, [(300, 130), (60, 200)])
    check_fixed_steps(seen, text, pictures)
    check_bfloat16(seen, text, [(300, 130), (60, 200)])
