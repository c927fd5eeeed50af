"""The exported folder, here with untrained weights: diffusers loads exactly the written weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.late import late
from training.shapes_sd.drawing import draw
from training.shapes_sd.scene import Scene, random_scene

architecture = late("training.shapes_sd.architecture")
autoencoding = late("training.shapes_sd.autoencoding")
averaging = late("training.shapes_sd.averaging")
checkpoint = late("training.shapes_sd.checkpoint")
diffusers = late("diffusers")
export = late("training.shapes_sd.export")
latents = late("training.shapes_sd.latents")
reading = late("training.shapes_sd.reading")
torch = late("torch")
vocabulary = late("training.shapes_sd.vocabulary")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    torch.manual_seed(1)
    pictures = architecture.autoencoder()
    averaging.start_averaging(pictures)
    for name, network in (
        ("autoencoder", pictures),
        ("text_encoder", reading.Reader(vocabulary.tokenizer())),
        ("denoiser", architecture.denoiser()),
    ):
        _write(folder / f"{name}.safetensors", network)
    return folder


def _write(path: Path, network: torch.nn.Module) -> None:
    checkpoint.save(path, 0, network, checkpoint.Average(network, 0.9), torch.optim.AdamW(network.parameters()))


@pytest.fixture(scope="module")
def weights(state: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latents, "MEASURED", 64)
        export.export(state, folder)
    return folder


def test_it_is_small_and_in_half_precision(weights: Path) -> None:
    files = [path for path in weights.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".txt", ".safetensors"}
    assert 10_000_000 < sum(path.stat().st_size for path in files) < export.MOST_BYTES
    for path in weights.rglob("*.safetensors"):
        raw = path.read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        assert {value["dtype"] for name, value in header.items() if name != "__metadata__"} == {"F16"}


def test_the_index_names_every_part(weights: Path) -> None:
    index = json.loads((weights / "model_index.json").read_text())
    assert index.pop("_diffusers_version")
    assert index == {
        "_class_name": "StableDiffusionPipeline",
        "feature_extractor": [None, None],
        "image_encoder": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
        "scheduler": ["diffusers", "DDIMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    scheduler = json.loads((weights / "scheduler" / "scheduler_config.json").read_text())
    assert (scheduler["prediction_type"], scheduler["timestep_spacing"]) == ("v_prediction", "trailing")


def test_diffusers_loads_it_and_makes_a_picture(weights: Path) -> None:
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(weights, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    (image,) = pipeline("a red circle", num_inference_steps=2, generator=torch.Generator().manual_seed(1)).images
    assert image.size == (64, 64)


def test_a_folder_that_is_too_large_is_refused(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latents, "MEASURED", 32)
    monkeypatch.setattr("training.shapes_sd.export.MOST_BYTES", 1_000_000)
    with pytest.raises(ValueError, match="more than 1000000"):
        export.export(state, tmp_path)


def test_the_head_start_reproduces_colours_and_latents_are_brought_to_scale(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.no_grad():
        monkeypatch.setattr(latents, "MEASURED", 128)
        network = latents.finished_autoencoder(state)
        rng = torch.Generator().manual_seed(2)
        chance = latents._rng(5_000)
        pictures = autoencoding.tensor([draw(random_scene(chance), chance) for _ in range(64)])
        spread = network.encode(pictures).latent_dist
        colours, spare = spread.mean[:, :3], spread.mean[:, 3]
        assert colours.std(dim=(0, 2, 3)).tolist() == pytest.approx([1.0] * 3, abs=0.25)
        assert colours.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.0] * 3, abs=0.25)
        assert 0.01 < spare.std() < 1, "what the autoencoder hardly uses is not blown up"
        made = network.decode(spread.sample(rng)).sample
        assert (made - pictures).abs().mean() < 0.12


def test_only_requested_shapes_are_drawn_for_the_autoencoder() -> None:
    """The autoencoder's input is in the range -1 to 1."""
    chance = latents._rng(1)
    given = autoencoding.tensor([draw(Scene("white", "square", "black"), chance)])
    assert -1 <= given.min() < -0.7
    assert 0.7 < given.max() <= 1
