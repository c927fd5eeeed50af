"""The resolved parameters of a request: the model's defaults for missing values, and errors that name the parameter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.errors import AllmError, InvalidRequest, Unsupported
from services.image.engine.messages import GuidanceRange, PipelineReady, Sizes
from services.image.parameters import ImageRequest, ResolvedRequest
from services.models.desired import ImageDefaults
from tests.case import case

READY = PipelineReady(
    family="StableDiffusionPipeline",
    sizes=Sizes(width=64, height=48, multiple_of=8, min_side=16, max_side=128, max_pixels=12_288),
    default_steps=20,
    max_steps=50,
    guidance=GuidanceRange(default=7.5, minimum=0.0, maximum=20.0),
    schedulers=["ddim", "euler"],
    default_scheduler="ddim",
    prompt_tokens=75,
    modes=["text_to_image", "image_to_image", "inpainting"],
    negative=True,
    image_strength=0.8,
    mask_strength=1.0,
    batch_images=4,
)

PIPELINES_OWN = ImageDefaults()


def resolved(ready: PipelineReady = READY, defaults: ImageDefaults = PIPELINES_OWN, **changes: Any) -> ResolvedRequest:
    return ResolvedRequest(ImageRequest(**{"model": "m", "prompt": "x"} | changes), "m", ready, defaults)


def refusal(ready: PipelineReady = READY, **changes: Any) -> AllmError:
    with pytest.raises(AllmError) as caught:
        resolved(ready, **changes)
    return caught.value


def test_registered_defaults_override_the_pipelines() -> None:
    own = ImageDefaults(steps=12, guidance=2.5)
    found = resolved(defaults=own).parameters()
    assert (found.steps, found.guidance) == (12, 2.5)
    assert [resolved(defaults=own, quality=quality).parameters().steps for quality in ("low", "high", "max")] == [
        6,
        18,
        36,
    ]
    found = resolved(defaults=own, steps=3, guidance=0.0).parameters()
    assert (found.steps, found.guidance) == (3, 0.0), "a request's own come first"
    assert resolved(defaults=ImageDefaults(guidance=0.0)).parameters().guidance == 0.0, "a value, not the lack of one"
    assert (resolved(defaults=ImageDefaults(steps=5)).parameters().guidance) == 7.5


def test_registered_values_are_held_within_the_models_limits() -> None:
    found = resolved(defaults=ImageDefaults(steps=900, guidance=90.0)).parameters()
    assert (found.steps, found.guidance) == (50, 20.0)
    always = replace(READY, guidance=GuidanceRange(default=0.0, minimum=0.0, maximum=0.0))
    assert resolved(always, ImageDefaults(guidance=7.0)).parameters().guidance == 0.0


def test_defaults_of_the_model_apply_to_a_request() -> None:
    found = resolved().parameters()
    assert (found.width, found.height, found.steps, found.guidance, found.scheduler) == (64, 48, 20, 7.5, "ddim")
    assert found.strength is None
    assert 0 <= resolved().seed < 2**32
    assert resolved().seed != resolved().seed


def test_values_of_a_request_are_used() -> None:
    found = resolved(size=(128, 96), steps=50, guidance=0.0, scheduler="euler").parameters()
    assert (found.width, found.height, found.steps, found.guidance, found.scheduler) == (128, 96, 50, 0.0, "euler")
    assert resolved(seed=0).seed == 0


def test_quality_is_a_share_of_the_models_own_steps_up_to_its_most() -> None:
    for quality, steps in [("low", 10), ("auto", 20), ("medium", 20), ("high", 30), ("xhigh", 40), ("max", 50)]:
        with case(quality=quality, steps=steps):
            assert resolved(quality=quality).parameters().steps == steps
            assert resolved(quality=quality, steps=3).parameters().steps == 3
            assert resolved(replace(READY, default_steps=1), quality="low").parameters().steps == 1


@pytest.mark.parametrize("size", [(8, 64), (64, 60), (136, 16), (128, 128), (0, 0)])
def test_a_size_that_the_model_does_not_make_is_refused_with_those_that_it_does(size: tuple[int, int]) -> None:
    error = refusal(size=size)
    assert (type(error), error.param) == (InvalidRequest, "size")
    assert "16 to 128, multiples of 8, and together at most 12288 pixels" in error.message


def test_a_value_outside_of_the_models_limits_is_refused_with_them() -> None:
    for changes, param, says in [
        ({"steps": 51}, "steps", "from 1 to 50, not 51"),
        ({"steps": 0}, "steps", "from 1 to 50, not 0"),
        ({"guidance": 20.5}, "guidance", "from 0 to 20, not 20.5"),
        ({"guidance": -1.0}, "guidance", "from 0 to 20"),
        ({"guidance": float("nan")}, "guidance", "nan"),
        ({"scheduler": "magic"}, "scheduler", "one of ddim, euler, not 'magic'"),
        ({"negative_prompt": "x", "guidance": 1.0}, "negative_prompt", "above 1"),
    ]:
        with case(changes=changes, param=param, says=says):
            error = refusal(**changes)
            assert (type(error), error.param) == (InvalidRequest, param)
            assert says in error.message


def test_unsupported_requests_of_a_model_are_refused_by_name() -> None:
    found = {
        refusal(replace(READY, negative=False), negative_prompt="x").param,
        refusal(replace(READY, guidance=GuidanceRange(default=1, minimum=1, maximum=1)), guidance=2.0).param,
        refusal(replace(READY, modes=["inpainting"])).param,
        refusal(replace(READY, modes=["text_to_image"]), task="edit", image=b"x").param,
    }
    assert found == {"negative_prompt", "guidance", "model", "image"}


def test_strength_is_the_models_own_which_differs_with_a_mask() -> None:
    edit = resolved(task="edit", image=b"x")
    assert edit.parameters_over(64, 64, masked=False).strength == 0.8
    assert edit.parameters_over(64, 64, masked=True).strength == 1.0
    assert resolved(task="edit", image=b"x", strength=0.5).parameters_over(64, 64, masked=True).strength == 0.5


@pytest.mark.parametrize(("strength", "steps"), [(0.0, 20), (1.01, 20), (-1.0, 20), (0.3, 3), (float("nan"), 20)])
def test_a_strength_that_leaves_no_step_is_refused(strength: float, steps: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolved(task="edit", image=b"x", strength=strength, steps=steps).parameters_over(64, 64, masked=False)
    assert caught.value.param == "strength"


def test_a_mask_needs_an_inpainting_model() -> None:
    whole_only = replace(READY, modes=["text_to_image", "image_to_image"])
    for mask, param in ((b"x", "mask"), (b"", "image")):
        with pytest.raises(Unsupported) as caught:
            resolved(whole_only, task="edit", image=b"x", mask=mask).parameters_over(64, 64, masked=True)
        assert caught.value.param == param


def test_an_image_keeps_its_shape_unless_a_size_is_asked_for() -> None:
    free, exact = resolved(task="vary").fit(), resolved(task="vary", size=(32, 16)).fit()
    assert (free.width, free.height, free.exact, free.multiple_of, free.max_pixels) == (64, 48, False, 8, 12_288)
    assert (exact.width, exact.height, exact.exact) == (32, 16, True)
