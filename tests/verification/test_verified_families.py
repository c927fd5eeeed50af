"""`allm models test` on every family: its architecture with small random weights, its special tokens and template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli.verify.suite import CHECKS, NO_SENSE
from tests.demo_model import demo_safetensors
from tests.text.families.published_configs import GLM4_MOE, NEMOTRON_3
from tests.text.families.published_words import write_gpt_oss, write_qwen3
from tests.text.families.random_models import write_model
from tests.verification.family_words import GLM_TEMPLATE, GLM_TOKENS, NEMOTRON_TEMPLATE, NEMOTRON_TOKENS, give_words
from tests.verification.model_commands import RECORD, ModelCommands, link_folder
from tests.verification.random_gguf import write_glm4, write_nemotron_h


def write_glm4_moe(folder: Path) -> Path:
    """Writes a small GLM-4-MoE."""
    write_model(folder, GLM4_MOE)
    give_words(folder, GLM_TOKENS, GLM_TEMPLATE, "<|endoftext|>")
    return folder


def write_nemotron_3(folder: Path) -> Path:
    """Writes a small Nemotron 3 Nano: Mamba-2, attention and experts."""
    write_model(folder, NEMOTRON_3)
    give_words(folder, NEMOTRON_TOKENS, NEMOTRON_TEMPLATE, "<|im_end|>")
    return folder


RANDOM: dict[str, tuple[Callable[[Path], Path], str]] = {
    "gpt-oss-random": (write_gpt_oss, "Harmony (gpt-oss)"),
    "qwen3-random": (write_qwen3, "ChatML (Qwen, SmolLM2)"),
    "glm4-moe-random": (write_glm4_moe, "GLM-4"),
    "nemotron-3-random": (write_nemotron_3, "Nemotron 3"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_a_family_passes_on_torch(models: ModelCommands, name: str, tmp_path: Path) -> None:
    write, form = RANDOM[name]
    found = _verify(models, name, write(models.root / name), tmp_path, "--random-weights")
    checks = {each["name"]: each for each in found["checks"]}
    assert checks["chat-template"]["seen"] == f"the prompts match {form}"
    assert [each["name"] for each in found["checks"] if each["verdict"] == "skipped"] == ["likelihood", "stop-tokens"]
    assert all(checks[each]["seen"] == NO_SENSE for each in ("likelihood", "stop-tokens"))
    assert (found["weights"], found["runtime"]) == ("random", "torch")


GGUF = {"glm4-random": (write_glm4, "GLM-4"), "nemotron-h-random": (write_nemotron_h, "Nemotron 3")}


@pytest.mark.slow
@pytest.mark.parametrize("name", GGUF)
def test_a_family_passes_on_llama_cpp(models: ModelCommands, name: str, tmp_path: Path) -> None:
    write, form = GGUF[name]
    found = _verify(models, name, write(models.root / name), tmp_path, "--random-weights", format="gguf")
    checks = {each["name"]: each for each in found["checks"]}
    assert list(checks) == [check.name for check in CHECKS]
    assert {name for name, each in checks.items() if each["verdict"] != "passed"} == {"likelihood", "stop-tokens"}
    assert checks["chat-template"]["seen"] == f"the prompts match {form}"
    assert (found["weights"], found["runtime"]) == ("random", "llama_cpp")


@pytest.mark.slow
def test_llama_passes_with_real_weights(models: ModelCommands, tmp_path: Path) -> None:
    folder = link_folder(demo_safetensors(), models.root / "smollm2-135m-instruct-st")
    # The other checks need many tokens, and GGUF files pass them in other tests.
    chosen = [] if RECORD else ["--check=chat-template", "--check=likelihood", "--check=stop-tokens", "--check=unload"]
    found = _verify(models, folder.name, folder, tmp_path, *chosen)
    assert [each["verdict"] for each in found["checks"]] == ["passed"] * (len(chosen) + 1 if chosen else len(CHECKS))
    assert (found["weights"], found["runtime"], found["architecture"]) == ("real", "torch", "llama")


def _verify(
    models: ModelCommands, name: str, folder: Path, tmp_path: Path, *options: str, format: str = "safetensors"
) -> dict[str, Any]:
    """Tests a model that must pass; returns the recorded result."""
    recorded = (RECORD or tmp_path) / f"{name}.json"
    models.add(name, folder, format)
    done = models("test", name, "--prompt-tokens", "300", "--record", recorded, *options)
    assert done.status == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(recorded.read_text(encoding="utf-8"))
    return found
