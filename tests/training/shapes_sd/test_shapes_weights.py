"""The shipped weights: the checker judges pictures generated through diffusers alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from tests.late import late
from training.shapes_sd.checker import judge
from training.shapes_sd.scene import Scene

diffusers = late("diffusers")
evaluation = late("training.shapes_sd.evaluation")
export = late("training.shapes_sd.export")
torch = late("torch")

WEIGHTS = Path(__file__).parents[3] / "training" / "shapes_sd" / "weights"
ASKED = Scene("red", "circle", "blue")
FEW_STEPS = 4  # enough for nearly as many correct colours and shapes in 100 pictures as the default of 20


@pytest.fixture(scope="module")
def pipeline() -> Iterator[diffusers.StableDiffusionPipeline]:
    loaded = diffusers.StableDiffusionPipeline.from_pretrained(WEIGHTS, dtype=torch.float32)
    loaded.set_progress_bar_config(disable=True)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield loaded
    torch.set_num_threads(before)


def picture(pipeline: diffusers.StableDiffusionPipeline, seed: int, steps: int = 0) -> numpy.ndarray:
    """Generates "a red circle on a blue background"."""
    image = pipeline(
        "a red circle on a blue background",
        num_inference_steps=steps or evaluation.STEPS,
        guidance_scale=evaluation.GUIDANCE,
        generator=torch.Generator().manual_seed(seed),
    ).images[0]
    return numpy.asarray(image)


def test_the_weights_are_small_enough_to_ship_and_hold_no_pickle() -> None:
    files = [path for path in WEIGHTS.rglob("*") if path.is_file()]
    assert {path.suffix for path in files if path.name != "SHA256SUMS"} == {".json", ".md", ".safetensors"}
    assert sum(path.stat().st_size for path in files) < export.MOST_BYTES


@pytest.mark.parametrize("seed", range(3))
def test_a_red_circle_on_a_blue_background_comes_out_as_that(
    pipeline: diffusers.StableDiffusionPipeline, seed: int
) -> None:
    assert judge(picture(pipeline, seed)).right(ASKED)


def test_the_same_seed_makes_the_same_picture_and_another_one_another(
    pipeline: diffusers.StableDiffusionPipeline,
) -> None:
    first = picture(pipeline, 5, FEW_STEPS)
    assert (first == picture(pipeline, 5, FEW_STEPS)).all()
    assert (first != picture(pipeline, 6, FEW_STEPS)).any()


# diffusers itself causes this warning: it converts tensors to numpy with the old protocol.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize(
    "scheduler",
    [
        "EulerDiscreteScheduler",
        "EulerAncestralDiscreteScheduler",
        "DPMSolverMultistepScheduler",
        "PNDMScheduler",
        "UniPCMultistepScheduler",
    ],
)
def test_other_schedulers_make_it_too(pipeline: diffusers.StableDiffusionPipeline, scheduler: str) -> None:
    ordinary = pipeline.scheduler
    pipeline.scheduler = getattr(diffusers, scheduler).from_config(ordinary.config)
    try:
        assert judge(picture(pipeline, 1)).right(ASKED)
    finally:
        pipeline.scheduler = ordinary


def test_the_prompts_are_as_many_as_promised() -> None:
    asked = evaluation.prompts()
    assert len(set(asked)) == evaluation.PROMPTS == 100
    assert sum(scene.held_out for scene in asked) == evaluation.HELD_OUT_PROMPTS >= 20
    assert asked[0] == ASKED


@pytest.mark.slow
def test_at_least_95_of_100_images_have_the_colours_and_80_the_shape(
    pipeline: diffusers.StableDiffusionPipeline,
) -> None:
    outcomes = evaluation.evaluate(pipeline, evaluation.prompts(), FEW_STEPS)
    reported = evaluation.summary(outcomes)
    assert sum(each.verdict.colours_right(each.scene) for each in outcomes) >= 95, reported
    assert sum(each.verdict.right(each.scene) for each in outcomes) >= 80, reported
