"""Pictures that shapes-sd has drawn, and drawings that went through its autoencoder: both differ from clean ones."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy
import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.shapes_sd.autoencoding import tensor
from training.shapes_sd.caption import plain_caption
from training.shapes_sd.checker import judge
from training.shapes_sd.evaluation import GUIDANCE
from training.shapes_sd.scene import Scene, random_scene
from training.shapes_vlm.scene import Seen, Thing, random_picture

SHAPES_SD = Path(__file__).parents[1] / "shapes_sd" / "weights"
GENERATED = 640  # pictures by the whole pipeline; those of which the checker is not sure are left out
STEPS = 12
DECODED = 3_200  # drawings through the autoencoder
SEED = 31
_BATCH = 32


@dataclass(frozen=True)
class Drawn:
    """Pictures uint8 [n, 64, 64, 3] and their contents; the first `generated` are by the whole pipeline."""

    pictures: numpy.ndarray
    contents: list[Seen]
    generated: int


def drawn(state: Path) -> Drawn:
    """Loads the pictures from the folder `state`; makes them if the file does not exist."""
    path = state / "drawn.safetensors"
    if not path.exists():
        generated, decoded = generate(GENERATED, SEED, STEPS), _decoded()
        pictures = numpy.concatenate([generated.pictures, decoded.pictures])
        contents = json.dumps([asdict(seen) for seen in generated.contents + decoded.contents])
        metadata = {"contents": contents, "generated": str(generated.generated)}
        save_file({"pictures": torch.from_numpy(pictures)}, path, metadata=metadata)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        contents = [_seen(content) for content in json.loads(metadata["contents"])]
        return Drawn(file.get_tensor("pictures").numpy(), contents, int(metadata["generated"]))


def content_of(scene: Scene) -> Seen:
    """Returns the content of a scene that has colour, shape and background."""
    if not (scene.colour and scene.shape and scene.background):
        raise ValueError(f"a scene without colour, shape or background: {scene}")
    thing = Thing(scene.colour, scene.shape, scene.size or "medium", scene.position or "in the center")
    return Seen(scene.background, (thing,))


def generate(number: int, seed: int, steps: int) -> Drawn:
    """Lets shapes-sd draw that many random scenes; returns those pictures that the checker recognises."""
    pipeline = StableDiffusionPipeline.from_pretrained(SHAPES_SD, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    rng = numpy.random.default_rng(seed)
    scenes = [random_scene(rng, held_out=index % 4 == 0) for index in range(number)]
    kept: list[tuple[numpy.ndarray, Seen]] = []
    for start in range(0, number, _BATCH):
        some = scenes[start : start + _BATCH]
        with torch.autocast("cpu", torch.bfloat16):
            made = pipeline(
                [plain_caption(scene) for scene in some],
                num_inference_steps=steps,
                guidance_scale=GUIDANCE,
                generator=[torch.Generator().manual_seed(seed * 1_000_000 + start + i) for i in range(len(some))],
                output_type="np",
            ).images
        pictures = (made * 255).round().astype(numpy.uint8)
        kept += [
            (picture, content_of(scene))
            for scene, picture in zip(some, pictures, strict=True)
            if judge(picture).right(scene)
        ]
    return Drawn(numpy.stack([picture for picture, _ in kept]), [content for _, content in kept], len(kept))


@torch.no_grad()
def _decoded() -> Drawn:
    network = AutoencoderKL.from_pretrained(SHAPES_SD / "vae", dtype=torch.float32)
    rng = numpy.random.default_rng(SEED)
    drawings = [random_picture(rng) for _ in range(DECODED)]
    made = []
    for start in range(0, DECODED, _BATCH):
        given = tensor([picture for _, picture in drawings[start : start + _BATCH]])
        with torch.autocast("cpu", torch.bfloat16):
            made.append(_pixels(network.decode(network.encode(given).latent_dist.sample()).sample))
    return Drawn(numpy.concatenate(made), [seen for seen, _ in drawings], 0)


def _pixels(made: Tensor) -> numpy.ndarray:
    return ((made.float() + 1) * 127.5).round().clip(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()


def _seen(content: dict) -> Seen:
    return Seen(content["background"], tuple(Thing(**thing) for thing in content["things"]))
