"""Broken models: `allm models test` fails on each at the check that should catch it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.demo_model import demo_safetensors
from tests.verification.broken_models import write_broken
from tests.verification.defects import DEFECTS, Defect
from tests.verification.model_commands import ModelCommands, link_folder


def test_there_are_at_least_twelve_defects() -> None:
    assert len({defect.name for defect in DEFECTS}) >= 12


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_broken_model_fails_at_its_check(models: ModelCommands, defect: Defect) -> None:
    path = write_broken(models.root / defect.name / "model.gguf", defect.change)
    models.add(defect.name, path, "gguf")
    done = models("test", defect.name, "--check", defect.check, "--prompt-tokens", "300", "--json")
    assert done.status == 1, done.stdout
    failed = [each for each in done.checks.values() if each["verdict"] == "failed"]
    assert [each["name"] for each in failed] == [defect.check]
    assert defect.words in failed[0]["seen"]
    assert failed[0]["likely"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"tie_word_embeddings": False}, "lacks 1 tensors of its architecture: lm_head.weight"),
        ({"vocab_size": 40_000}, "tokenizer.json has tokens up to 49151, but config.json says vocab_size 40000"),
    ],
    ids=["untied-embeddings", "smaller-vocabulary"],
)
def test_a_broken_folder_fails_to_load_with_the_reason(
    models: ModelCommands, config: dict[str, Any], words: str
) -> None:
    folder = link_folder(demo_safetensors(), models.root / "folder")
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(said | config), encoding="utf-8")
    models.add("folder", folder, "safetensors")
    done = models("test", "folder", "--json")
    assert done.status == 1
    assert done.checks["load"]["verdict"] == "failed"
    assert words in done.checks["load"]["seen"]
    others = [each for name, each in done.checks.items() if name != "load"]
    assert {(each["verdict"], each["seen"]) for each in others} == {("skipped", "the model is not loaded")}
