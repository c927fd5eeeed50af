"""The engine on tiny pipelines of every family: sizes, schedulers, previews, rows that leave, and faults."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.image.engine.messages import EngineOptions
from services.image.engine.runtime import Preview
from services.models.demo.copied_demo import WEIGHTS
from services.worker.messages import EngineError
from tests.image.engine.original_weights import write_original
from tests.image.engine.pipeline_session import (
    PROMPTS,
    Pixels,
    as_array,
    draft,
    furthest,
    left_half,
    made,
    noise_image,
    parameters,
)
from tests.image.engine.tiny_pipelines import FAMILIES, TOKENS
from tests.late import late

diffusers_engine = late("services.image.engine.runtimes.diffusers.engine")

EngineOf = Callable[[str], Any]
FAMILY = "StableDiffusionPipeline"
NOISE = ["ddim", "ddpm", "dpmpp_2m", "euler", "euler_a", "heun", "pndm", "unipc"]
every_family = pytest.mark.parametrize("family", FAMILIES)


def load(folder: Path, **options: Any) -> diffusers_engine.DiffusersEngine:
    whole = EngineOptions(model_id="m", path=str(folder), threads=1, gpu=False)
    return diffusers_engine.DiffusersEngine(replace(whole, **options), lambda _: None)


@every_family
def test_a_family_is_known_by_its_index_and_says_what_it_can_do(engine_of: EngineOf, family: str) -> None:
    ready = engine_of(family).ready
    assert ready.family == family
    assert set(ready.modes) == {"text_to_image", "image_to_image", "inpainting"}
    assert ready.default_scheduler in ready.schedulers
    assert ready.prompt_tokens == TOKENS - 2
    assert ready.negative == (family != "FluxPipeline")
    assert ready.guidance.minimum <= ready.guidance.default <= ready.guidance.maximum
    assert 1 <= ready.default_steps <= ready.max_steps
    sizes = ready.sizes
    for side in (sizes.width, sizes.height, sizes.min_side, sizes.max_side):
        assert side % sizes.multiple_of == 0
    assert sizes.min_side <= sizes.width <= sizes.max_side


@every_family
def test_images_have_the_size_that_was_asked_for(engine_of: EngineOf, family: str) -> None:
    engine = engine_of(family)
    chosen = parameters(engine, width=48, height=24, steps=2)
    images = engine.generate(chosen, [draft(1)], lambda *_: [0], lambda: None)
    assert [len(image or b"") for image in images] == [48 * 24 * 3]


@every_family
def test_the_smallest_images_that_are_allowed_can_be_made(engine_of: EngineOf, family: str) -> None:
    engine = engine_of(family)
    side = engine.ready.sizes.min_side
    chosen = parameters(engine, width=side, height=side, steps=1)
    assert len(made(engine, chosen, draft(1))) == 1


@every_family
@pytest.mark.parametrize("mode", ["image_to_image", "inpainting"])
def test_images_are_changed_by_every_family(engine_of: EngineOf, family: str, mode: str) -> None:
    engine = engine_of(family)
    mask = left_half().tobytes() if mode == "inpainting" else None
    drafts = [draft(seed, PROMPTS[seed], image=noise_image().tobytes(), mask=mask) for seed in range(2)]
    images = made(engine, parameters(engine, strength=0.7), *drafts)
    assert len(images) == 2
    assert furthest(*images) > 2


@pytest.mark.parametrize(
    ("family", "names"),
    [
        (FAMILY, NOISE),
        ("StableDiffusion3Pipeline", ["flow_match_euler", "flow_match_heun"]),
        ("FluxPipeline", ["flow_match_euler"]),
    ],
)
def test_every_scheduler_works_and_the_same_seed_is_the_same_image(
    engine_of: EngineOf, family: str, names: list[str]
) -> None:
    engine = engine_of(family)
    assert [name for name in engine.ready.schedulers if name != "lms"] == names
    for name in names:
        chosen = parameters(engine, scheduler=name)
        first, other = made(engine, chosen, draft(1)), made(engine, chosen, draft(2))
        assert np.array_equal(first, made(engine, chosen, draft(1)))
        assert furthest(first[0], other[0]) > 2


def test_previews_of_a_decoder_that_overflows_in_half_precision_are_decoded_in_full(
    folder_of: Callable[[str], Path],
) -> None:
    engine = load(folder_of("StableDiffusionXLPipeline"), dtype="float16")
    chosen = parameters(engine, steps=2)
    previews: list[bytes] = []

    def after_step(step: int, steps: int, preview: Preview) -> Sequence[int]:
        previews[:] = preview([0])
        return [0]

    (image,) = engine.generate(chosen, [draft(1)], after_step, lambda: None)
    assert furthest(as_array(previews[0], chosen), as_array(image or b"", chosen)) <= 2


@every_family
def test_previews_are_of_the_rows_that_were_asked_for_and_the_last_one_is_nearly_the_image(
    engine_of: EngineOf, family: str
) -> None:
    engine = engine_of(family)
    chosen = parameters(engine, steps=4)
    seen: dict[int, list[bytes]] = {}

    def after_step(step: int, steps: int, preview: Preview) -> Sequence[int]:
        assert steps == 4
        seen[step] = preview([1, 0] if step == 4 else [1])
        return [0, 1]

    images = engine.generate(chosen, [draft(1), draft(2)], after_step, lambda: None)
    assert [len(previews) for previews in seen.values()] == [1, 1, 1, 2]
    last = [as_array(image, chosen) for image in seen[4]]
    ends = [as_array(image or b"", chosen) for image in images]
    assert furthest(last[0], ends[1]) <= 2
    assert furthest(last[1], ends[0]) <= 2
    assert furthest(as_array(seen[1][0], chosen), ends[1]) > 2


@every_family
def test_previews_show_what_the_mask_keeps_as_it_was(engine_of: EngineOf, family: str) -> None:
    engine = engine_of(family)
    chosen = parameters(engine, strength=1.0, steps=4)
    image, mask = noise_image(), left_half()
    previews: list[bytes] = []

    def after_step(step: int, steps: int, preview: Preview) -> Sequence[int]:
        previews.extend(preview([0]) if step == 1 else [])
        return [0]

    engine.generate(chosen, [draft(1, image=image.tobytes(), mask=mask.tobytes())], after_step, lambda: None)
    shown, given = as_array(previews[0], chosen), as_array(image.tobytes(), chosen)
    kept = np.asarray(mask) == 0
    assert np.array_equal(shown[kept], given[kept])
    assert furthest(shown[~kept], given[~kept]) > 2


@pytest.mark.parametrize(
    ("family", "scheduler"),
    [*((FAMILY, name) for name in NOISE), *((name, "") for name in FAMILIES if name != FAMILY)],
)
def test_leaving_a_batch_does_not_affect_the_others(engine_of: EngineOf, family: str, scheduler: str) -> None:
    engine = engine_of(family)
    chosen = parameters(engine, steps=4, scheduler=scheduler or engine.ready.default_scheduler)
    drafts = [draft(seed, prompt) for seed, prompt in enumerate(PROMPTS)]
    whole = made(engine, chosen, *drafts)
    previews: list[bytes] = []

    def after_step(step: int, steps: int, preview: Preview) -> Sequence[int]:
        if step == 3:
            previews.extend(preview([3]))
        return [0, 1, 2, 3] if step == 1 else [1, 3]

    left = engine.generate(chosen, drafts, after_step, lambda: None)
    assert left[0] is left[2] is None
    for row in (1, 3):
        assert furthest(as_array(left[row] or b"", chosen), whole[row]) <= 2
    assert len(previews) == 1


@every_family
def test_unwanted_batch_ends_after_the_step_and_does_not_affect_the_next(engine_of: EngineOf, family: str) -> None:
    engine = engine_of(family)
    before = made(engine, parameters(engine), draft(1))[0]
    steps: list[int] = []

    def after_step(step: int, of: int, preview: Preview) -> Sequence[int]:
        steps.append(step)
        return []

    assert engine.generate(parameters(engine), [draft(1), draft(2)], after_step, lambda: None) == [None, None]
    assert steps == [1]
    assert np.array_equal(made(engine, parameters(engine), draft(1))[0], before)


def test_heartbeats_are_sent_before_the_first_step(engine_of: EngineOf) -> None:
    engine = engine_of(FAMILY)
    engine._beaten = 0.0
    beats: list[int] = []
    engine.generate(parameters(engine), [draft(1)], lambda *_: [0] if beats else [], lambda: beats.append(1))
    assert beats


def test_prompts_are_counted_without_the_encoders_marks(engine_of: EngineOf) -> None:
    engine = engine_of(FAMILY)
    fit = engine.fit("a" * 38)
    assert (fit.tokens, fit.limit) == (38, 38)
    assert engine.fit("word " * 10_000).tokens == 40_000
    assert engine.fit("").tokens == 0


def test_damaged_weights_are_reported(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folder_of(FAMILY), tmp_path / "m")
    (folder / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"nothing of a model")
    with pytest.raises(EngineError) as failed:
        load(folder)
    assert failed.value.code == "MODEL_INVALID"


def test_pickled_weights_are_never_read(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folder_of(FAMILY), tmp_path / "m")
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_name("diffusion_pytorch_model.bin"))
    with pytest.raises(EngineError) as failed:
        load(folder)
    assert failed.value.code == "MODEL_INVALID"


def test_weights_that_are_there_only_in_half_precision_are_found(
    folder_of: Callable[[str], Path], engine_of: EngineOf, tmp_path: Path
) -> None:
    folder = shutil.copytree(folder_of(FAMILY), tmp_path / "m")
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_name("diffusion_pytorch_model.fp16.safetensors"))
    engine = load(folder)
    expected = made(engine_of(FAMILY), parameters(engine), draft(1))[0]
    assert np.array_equal(made(engine, parameters(engine), draft(1))[0], expected)


@pytest.mark.parametrize(
    ("options", "what"),
    [({"gpu": True}, "GPU"), ({"dtype": "int8"}, "int8")],
)
def test_unavailable_item_is_refused(folder_of: Callable[[str], Path], options: dict, what: str) -> None:
    with pytest.raises(EngineError, match=what) as failed:
        load(folder_of(FAMILY), **options)
    assert failed.value.code == "UNSUPPORTED"


def test_bfloat16_is_computed_where_it_is_asked_for(folder_of: Callable[[str], Path], engine_of: EngineOf) -> None:
    engine = load(folder_of(FAMILY), dtype="bfloat16", batch_images=3)
    assert engine.ready.batch_images == 3
    (image,) = made(engine, parameters(engine), draft(1))
    assert furthest(image, made(engine_of(FAMILY), parameters(engine), draft(1))[0]) > 0


safetensors_torch = late("safetensors.torch")

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
PROMPT = "a red circle on a blue background"


def base_of(folder: Path, target: Path) -> Path:
    """Copies the small files of a pipeline."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    return target


def engine(path: Path, base: Path | None = None) -> diffusers_engine.DiffusersEngine:
    options = EngineOptions(model_id="m", path=str(path), base=str(base or ""), threads=1, gpu=False)
    return diffusers_engine.DiffusersEngine(options, lambda _: None)


def generated(engine: diffusers_engine.DiffusersEngine, side: int) -> Pixels:
    chosen = parameters(engine, width=side, height=side, guidance=2.5)
    (pixels,) = made(engine, chosen, draft(7, PROMPT))
    return pixels


@pytest.mark.parametrize("family", ["shapes-sd", "StableDiffusionPipeline", "StableDiffusionXLPipeline"])
def test_the_pixels_are_those_of_the_folder(
    tmp_path: Path, folder_of: Callable[[str], Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, side = (WEIGHTS, 64) if family == "shapes-sd" else (folder_of(family), 32)
    one = write_original(folder, tmp_path / "one.safetensors")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens on this port
    ours, theirs = engine(one, base_of(folder, tmp_path / "base")), engine(folder)
    assert ours.ready == theirs.ready, "limits and defaults come from the same configuration"
    assert np.array_equal(generated(ours, side), generated(theirs, side))


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    tensors = safetensors_torch.load_file(write_original(WEIGHTS, tmp_path / "one.safetensors"))
    absent = "model.diffusion_model.middle_block.1.transformer_blocks.0.attn2.to_q.weight"
    del tensors[absent]
    safetensors_torch.save_file(tensors, tmp_path / "one.safetensors")
    with pytest.raises(EngineError) as caught:
        engine(tmp_path / "one.safetensors", base_of(WEIGHTS, tmp_path / "base"))
    assert caught.value.code == "MODEL_INVALID"
    assert "one.safetensors lacks weights that the model of" in caught.value.message


def test_a_base_of_another_size_is_refused(tmp_path: Path) -> None:
    one = write_original(WEIGHTS, tmp_path / "one.safetensors")
    config = base_of(WEIGHTS, tmp_path / "base") / "vae" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"block_out_channels": [16, 32, 32]}))
    with pytest.raises(EngineError) as caught:
        engine(one, tmp_path / "base")
    assert caught.value.code == "MODEL_INVALID"


def test_an_adapter_in_a_folder_is_refused(tmp_path: Path) -> None:
    folder = base_of(WEIGHTS, tmp_path / "base")
    (folder / "text_encoder" / "adapter_config.json").write_text("{}")
    with pytest.raises(EngineError, match=r"text_encoder/adapter_config\.json would change the model unasked"):
        engine(folder)
