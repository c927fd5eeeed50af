"""Trains, exports and judges shapes-sd: `python -m training.shapes_sd --help`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline

from training.shapes_sd.autoencoding import train_autoencoder
from training.shapes_sd.denoising import train_denoiser
from training.shapes_sd.evaluation import evaluate, prompts, sheet, summary
from training.shapes_sd.export import export
from training.shapes_sd.reading import train_text_encoder
from training.shapes_sd.training import settle

WEIGHTS = Path(__file__).parent / "weights"
# In the order of their dependencies.
STAGES = {"autoencoder": train_autoencoder, "text-encoder": train_text_encoder, "denoiser": train_denoiser}


def main() -> None:
    """Parses and runs the command line."""
    parser = argparse.ArgumentParser(prog="training/shapes_sd", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train all stages, or go on where that was interrupted")
    training.add_argument("--stage", choices=list(STAGES), help="this one only")
    exporting = commands.add_parser("export", help="write the pipeline of the checkpoints")
    for command in (training, exporting):
        command.add_argument("--state", type=Path, required=True, help="folder of the checkpoints")
    judging = commands.add_parser("evaluate", help="let the checker judge what the pipeline makes of 100 prompts")
    judging.add_argument("--sheet", type=Path, help="PNG file for the pictures")
    for command in (exporting, judging):
        command.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the pipeline")
    _run(parser.parse_args())


def _run(arguments: argparse.Namespace) -> None:
    settle()
    if arguments.command == "train":
        arguments.state.mkdir(parents=True, exist_ok=True)
        for stage in [arguments.stage] if arguments.stage else STAGES:
            STAGES[stage](arguments.state)
    elif arguments.command == "export":
        export(arguments.state, arguments.weights)
    else:
        # Explicit, because the text encoder would otherwise keep its stored precision while the rest loads as float32.
        pipeline = StableDiffusionPipeline.from_pretrained(arguments.weights, dtype=torch.float32)
        outcomes = evaluate(pipeline, prompts())
        print(summary(outcomes))
        if arguments.sheet:
            sheet(outcomes, arguments.sheet)


if __name__ == "__main__":
    main()
