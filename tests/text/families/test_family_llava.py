"""LLaVA: CLIP before a Llama, and SigLIP before a Qwen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.worker.messages import EngineError
from tests.late import late
from tests.text.families.published_configs import SMOLLM2
from tests.text.families.published_vision_configs import CLIP_PIXELS, LLAVA, LLAVA_QWEN, PADDED_PIXELS, SIGLIP_PIXELS
from tests.text.families.random_models import write_json, write_model, write_variant
from tests.text.families.torch_session import LIMITS, TorchSession, load
from tests.text.families.vision_checks import (
    Seeing,
    check_answers,
    check_bfloat16,
    check_logprobs,
    picture,
    pil_processor,
    seeing,
    write_seeing,
)

transformers = late("transformers")
vision = late("services.text.engine.runtimes.torch.vision")

TWO = "user: <image>\nand <image> differ in "


def loaded(folder: Path, config: dict[str, Any]) -> Seeing:
    processor = transformers.LlavaProcessor(
        pil_processor(folder),
        transformers.PreTrainedTokenizerFast.from_pretrained(folder),
        patch_size=config["vision_config"]["patch_size"],
        vision_feature_select_strategy=config["vision_feature_select_strategy"],
        num_additional_image_tokens=int(config is LLAVA),
    )
    return seeing(folder, processor, "<image>")


@pytest.fixture(scope="module")
def llava_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing(tmp_path_factory.mktemp("llava"), LLAVA, CLIP_PIXELS, ["<image>"])


@pytest.fixture(scope="module")
def llava(llava_folder: Path) -> Seeing:
    return loaded(llava_folder, LLAVA)


@pytest.fixture(scope="module", params=["scaled", "padded"])
def llava_qwen(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Seeing:
    pixels = SIGLIP_PIXELS if request.param == "scaled" else PADDED_PIXELS
    folder = write_seeing(tmp_path_factory.mktemp("llava-qwen"), LLAVA_QWEN, pixels, ["<image>"])
    return loaded(folder, LLAVA_QWEN)


def test_it_sees_as_transformers_does(llava: Seeing) -> None:
    answer = check_answers(llava, TWO, [picture(90, 40), picture(33, 200, seed=1)])
    other = check_answers(llava, TWO, [picture(90, 40), picture(33, 200, seed=2)])
    assert answer.logprobs[0] != other.logprobs[0]
    check_answers(llava, "<image>" * 2 + " ", [picture(56, 56), picture(1, 1)])


def test_it_sees_as_transformers_does_in_bfloat16(llava: Seeing) -> None:
    check_bfloat16(llava, TWO, [(90, 40), (33, 200)])


def test_siglip_before_qwen_sees_as_transformers_does(llava_qwen: Seeing) -> None:
    check_answers(llava_qwen, TWO, [picture(90, 40), picture(33, 200, seed=1)])


def test_requests_with_pictures_start_over_under_memory_pressure(llava: Seeing) -> None:
    """The cache holds two of five requests at their ends: preempted ones encode their pictures again."""
    small = load(llava.folder, context_tokens=128, kv_tokens=160)
    seen = replace(llava, engine=small)
    session = TorchSession(small, replace(LIMITS, cached_cells=0))
    asked = {
        number: seen.ask("<image> and <image> are", [picture(90, 40, seed=number), picture(33, 99)])
        for number in range(5)
    }
    for number, each in asked.items():
        session.ask(number, each.tokens, each.parts, max_tokens=48)
    session.finish(*asked)
    assert session.counters is not None
    assert session.counters.preempted > 0
    for number, each in asked.items():
        check_logprobs(seen, each, session.generated(number))


def test_equal_pictures_have_equal_tokens(llava: Seeing) -> None:
    tokens, (part,) = llava.engine.see(picture(90, 40))
    assert tokens == [tokens[0]] * 16 == llava.engine.see(picture(90, 40))[0]
    assert tokens[0] < 0
    assert (part.start, part.count, part.whole, part.advance) == (0, 16, False, None)
    assert llava.engine.see(picture(90, 40, seed=1))[0] != tokens


def test_pictures_that_wait_have_a_limit(llava: Seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "MOST_PICTURE_BYTES", 3 * 56 * 56 * 2)
    first, second = (llava.engine.see(picture(90, 40, seed=seed))[1] for seed in (1, 2))
    with pytest.raises(EngineError, match="pictures of 0 MiB wait") as caught:
        llava.engine.see(picture(90, 40))
    assert caught.value.code == "OVERLOADED"
    assert second
    del first
    llava.engine.see(picture(90, 40))


def test_strips_are_refused_by_size(llava: Seeing) -> None:
    llava.engine.see(picture(1, 100))
    strip = replace(picture(1, 101), param="messages[0].content[1].image_url.url")
    with pytest.raises(EngineError, match="1 x 101 pixels is too narrow") as caught:
        llava.engine.see(strip)
    assert (caught.value.code, caught.value.param) == ("INVALID_REQUEST", strip.param)


@pytest.mark.parametrize(
    ("changes", "pixels", "code", "message"),
    [
        ({"vision_config": LLAVA["vision_config"] | {"model_type": "vit"}}, {}, "UNSUPPORTED", "not with 'vit'"),
        ({"model_type": "vipllava"}, {}, "UNSUPPORTED", "does not see with the architecture 'vipllava', only with"),
        ({}, {"crop_size": {"height": 28, "width": 28}}, "MODEL_INVALID", "scales to 28 x 28 .* takes 56 x 56"),
        (
            {},
            {"image_processor_type": "OwnProcessor"},
            "UNSUPPORTED",
            "does not know the image processor 'OwnProcessor'",
        ),
        ({}, {"size": "large"}, "MODEL_INVALID", "image processor's settings in .* cannot be read"),
    ],
)
def test_others_are_refused_by_name(
    llava_folder: Path, tmp_path: Path, changes: dict[str, Any], pixels: dict[str, Any], code: str, message: str
) -> None:
    folder = write_variant(tmp_path / "other", llava_folder, LLAVA | changes)
    write_json(folder / "preprocessor_config.json", CLIP_PIXELS | pixels)
    with pytest.raises(EngineError, match=message) as caught:
        load(folder)
    assert caught.value.code == code


def test_it_is_not_divided(llava_folder: Path) -> None:
    with pytest.raises(EngineError, match="does not divide models that take pictures"):
        load(llava_folder, tensor_parallel=2)


def test_a_model_of_text_takes_no_pictures(tmp_path: Path) -> None:
    engine = load(write_model(tmp_path / "text", SMOLLM2))
    assert not engine.ready.sees
    with pytest.raises(EngineError, match="the model takes no pictures"):
        engine.see(picture(8, 8))
