"""LLaVA: CLIP before a Llama, and SigLIP before a Qwen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.late import late
from tests.text.families.published_configs import CLIP_PIXELS, LLAVA, LLAVA_QWEN, SIGLIP_PIXELS
from tests.text.families.vision_checks import Seeing, check_answers, picture, seeing, write_seeing

transformers = late("transformers")

TWO = "user: <image>\nand <image> differ in "


def loaded(folder: Path, config: dict[str, Any], pixels: dict[str, Any]) -> Seeing:
    write_seeing(folder, config, pixels, ["<image>"])
    processor = transformers.LlavaProcessor(
        transformers.AutoImageProcessor.from_pretrained(folder, backend="pil"),
        transformers.PreTrainedTokenizerFast.from_pretrained(folder),
        patch_size=config["vision_config"]["patch_size"],
        vision_feature_select_strategy=config["vision_feature_select_strategy"],
        num_additional_image_tokens=int(config is LLAVA),
    )
    return seeing(folder, processor, "<image>")


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return loaded(tmp_path_factory.mktemp("llava"), LLAVA, CLIP_PIXELS)


@pytest.fixture(scope="module")
def llava_qwen(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return loaded(tmp_path_factory.mktemp("llava-qwen"), LLAVA_QWEN, SIGLIP_PIXELS)


def test_it_sees_as_transformers_does(llava: Seeing) -> None:
    check_answers(llava, TWO, [picture(90, 40), picture(33, 200, seed=1)])
    check_answers(llava, "<image>" * 2 + " ", [picture(56, 56), picture(1, 1)])


def test_siglip_before_qwen_sees_as_transformers_does(llava_qwen: Seeing) -> None:
    check_answers(llava_qwen, TWO, [picture(90, 40), picture(33, 200, seed=1)])
