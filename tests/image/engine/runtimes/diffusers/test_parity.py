"""The engine compared with diffusers' own pipelines: the same seed and settings give the same pixels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.image.engine.pipeline_session import (
    PROMPTS,
    SIDE,
    Pixels,
    draft,
    furthest,
    left_half,
    made,
    noise_image,
    parameters,
)
from tests.image.engine.tiny_pipelines import FAMILIES
from tests.late import late

if TYPE_CHECKING:
    from services.image.engine.runtimes.diffusers.engine import DiffusersEngine

diffusers = late("diffusers")
torch = late("torch")

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

OFF = 2  # of 255: other members of a batch may cause this difference
FAMILY = "StableDiffusionPipeline"
every_family = pytest.mark.parametrize("family", FAMILIES)


def directly(folder: Path, pipeline: str, seed: int, prompt: str, **more: Any) -> Pixels:
    """Generates one image as diffusers' documentation does."""
    torch.set_num_threads(1)
    own = getattr(diffusers, pipeline).from_pretrained(folder, use_safetensors=True, local_files_only=True)
    own.set_progress_bar_config(disable=True)
    arguments = {"num_inference_steps": 3, "guidance_scale": 3.0, **more}
    return np.asarray(own(prompt, generator=torch.Generator().manual_seed(seed), **arguments).images[0])


@every_family
def test_alone_the_pixels_are_identical(
    engine_of: Callable[[str], DiffusersEngine], folder_of: Callable[[str], Path], family: str
) -> None:
    engine = engine_of(family)
    (ours,) = made(engine, parameters(engine), draft(7))
    expected = directly(folder_of(family), family, 7, PROMPTS[0], width=SIDE, height=SIDE)
    assert np.array_equal(ours, expected)
    assert expected.std() > 5, "an image without contrast would prove nothing"


@every_family
def test_in_a_batch_with_strangers_hardly_anything_changes(
    engine_of: Callable[[str], DiffusersEngine], family: str
) -> None:
    engine = engine_of(family)
    drafts = [draft(seed, prompt) for seed, prompt in enumerate(PROMPTS)]
    together = made(engine, parameters(engine), *drafts)
    alone = [made(engine, parameters(engine), one)[0] for one in drafts]
    assert [furthest(one, other) <= OFF for one, other in zip(together, alone, strict=True)] == [True] * 4
    assert furthest(alone[0], alone[1]) > 10 * OFF, "other seeds give other images"


@pytest.mark.parametrize("mode", ["image_to_image", "inpainting"])
def test_a_changed_image_is_identical_too(
    engine_of: Callable[[str], DiffusersEngine], folder_of: Callable[[str], Path], mode: str
) -> None:
    engine = engine_of(FAMILY)
    masked = mode == "inpainting"
    more: dict[str, Any] = {"image": noise_image(), "strength": 0.7}
    if masked:
        more |= {"mask_image": left_half(), "width": SIDE, "height": SIDE}
    name = "StableDiffusionInpaintPipeline" if masked else "StableDiffusionImg2ImgPipeline"
    expected = directly(folder_of(FAMILY), name, 3, PROMPTS[1], **more)
    chosen = parameters(engine, strength=0.7)
    image, mask = noise_image().tobytes(), left_half().tobytes() if masked else None
    drafts = [
        draft(3, PROMPTS[1], image=image, mask=mask),
        draft(4, PROMPTS[2], image=bytes(SIDE * SIDE * 3), mask=mask),
    ]
    (ours,) = made(engine, chosen, drafts[0])
    assert np.array_equal(ours, expected)
    first, second = made(engine, chosen, *drafts)
    assert furthest(first, expected) <= OFF
    assert furthest(second, expected) > OFF


SCHEDULERS = {
    "ddpm": ("DDPMScheduler", {}),
    "dpmpp_2m": ("DPMSolverMultistepScheduler", {}),
    "euler": ("EulerDiscreteScheduler", {}),
    "euler_a": ("EulerAncestralDiscreteScheduler", {}),
    "heun": ("HeunDiscreteScheduler", {}),
    "pndm": ("PNDMScheduler", {"skip_prk_steps": True}),
    "unipc": ("UniPCMultistepScheduler", {}),
}


def test_negative_prompts_and_other_schedulers_are_identical_too(
    engine_of: Callable[[str], DiffusersEngine], folder_of: Callable[[str], Path]
) -> None:
    family = "StableDiffusionXLPipeline"
    engine = engine_of(family)
    own = diffusers.StableDiffusionXLPipeline.from_pretrained(folder_of(family))
    own.set_progress_bar_config(disable=True)
    torch.set_num_threads(1)
    scheduler = own.scheduler
    assert {"ddim", *SCHEDULERS} == set(engine.ready.schedulers) - {"lms"}
    for name, (kind, options) in SCHEDULERS.items():
        own.scheduler = getattr(diffusers, kind).from_config(scheduler.config, **options)
        expected = own(
            PROMPTS[0],
            negative_prompt="rain",
            width=SIDE,
            height=SIDE,
            num_inference_steps=3,
            guidance_scale=3.0,
            generator=torch.Generator().manual_seed(5),
        ).images[0]
        (ours,) = made(engine, parameters(engine, scheduler=name), draft(5, negative="rain"))
        assert np.array_equal(ours, np.asarray(expected)), name
    (plain,) = made(engine, parameters(engine, scheduler=name), draft(5))
    assert not np.array_equal(ours, plain), "the negative prompt counts"
