"""The parts of the check, one table: a model, its runtime, and what is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.gpu import material
from bench.gpu.material import Place
from services.models.descriptor import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part: it runs alone, in at most eight minutes, and leaves a result of its own."""

    name: str
    runtime: str
    format: Format
    make: Callable[[Place], Path]
    about: str  # the model, for the table of results
    real: bool = False  # a published model: its answers make sense
    processor: bool = True  # the processor can answer too, for comparison
    speed: bool = False  # tokens/s at 1, 8, 32 and 128 clients, and transformers' beside them
    graphs: bool = False  # CUDA graphs on and off


PARTS = (
    Part(
        name="gpt-oss",
        runtime="torch",
        format="safetensors",
        make=partial(material.gpt_oss, layers=24),
        about="gpt-oss-20b, all 24 layers, random MXFP4 weights",
        processor=False,
        speed=True,
        graphs=True,
    ),
    Part(
        name="gpt-oss-2",
        runtime="torch",
        format="safetensors",
        make=partial(material.gpt_oss, layers=2),
        about="gpt-oss-20b, 2 layers, random MXFP4 weights",
    ),
    Part(
        name="smollm2",
        runtime="torch",
        format="safetensors",
        make=material.smollm2_safetensors,
        about="SmolLM2-135M-Instruct, bf16",
        real=True,
        speed=True,
        graphs=True,
    ),
    Part(
        name="smollm2-gguf",
        runtime="llama_cpp",
        format="gguf",
        make=material.smollm2_gguf,
        about="SmolLM2-135M-Instruct, BF16 GGUF",
        real=True,
        speed=True,
    ),
    Part(
        name="qwen3",
        runtime="torch",
        format="safetensors",
        make=material.qwen3,
        about="Qwen3-8B, 4 layers, random bf16 weights",
        speed=True,
        graphs=True,
    ),
    Part(
        name="glm4-moe",
        runtime="torch",
        format="safetensors",
        make=material.glm4_moe,
        about="GLM-4.5-Air, 2 layers, random bf16 weights",
        graphs=True,
    ),
    Part(
        name="nemotron-h",
        runtime="torch",
        format="safetensors",
        make=material.nemotron_h,
        about="Nemotron-Nano-9B-v2, 7 layers, random bf16 weights",
        graphs=True,
    ),
    Part(
        name="minilm",
        runtime="torch",
        format="safetensors",
        make=material.minilm,
        about="all-MiniLM-L6-v2",
        real=True,
    ),
    Part(
        name="shapes-sd",
        runtime="diffusers",
        format="diffusers",
        make=material.shapes_sd,
        about="shapes-sd, our own Stable Diffusion",
        real=True,
    ),
    Part(
        name="whisper",
        runtime="whisper",
        format="whisper",
        make=material.whisper_checkpoint,
        about="Whisper tiny.en, OpenAI's checkpoint",
        real=True,
    ),
    Part(
        name="faster-whisper",
        runtime="faster_whisper",
        format="whisper",
        make=material.whisper_ctranslate2,
        about="Whisper tiny.en for CTranslate2",
        real=True,
    ),
    Part(
        name="smollm2-vllm",
        runtime="vllm",
        format="safetensors",
        make=material.smollm2_safetensors,
        about="SmolLM2-135M-Instruct, bf16, vLLM",
        real=True,
        processor=False,
        speed=True,
    ),
)
