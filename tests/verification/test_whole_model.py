"""`allm models test` on an intact model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.cli.verify.suite import CHECKS
from tests.stack import ALIAS, MODEL
from tests.verification.model_commands import RECORD, ModelCommands

# These checks need many tokens; small GGUF files pass them in test_verified_families.py.
SAMENESS = {"determinism", "streaming", "batch"}


@pytest.mark.slow
def test_the_demo_model_passes(models: ModelCommands, tmp_path: Path) -> None:
    recorded = (RECORD or tmp_path) / f"{MODEL}.json"
    names = [check.name for check in CHECKS if RECORD or check.name not in SAMENESS]
    chosen = [f"--check={name}" for name in names]
    done = models("test", ALIAS, "--prompt-tokens", "300", "--record", recorded, *chosen)
    assert done.status == 0, done.stdout
    assert f"{MODEL}: {len(names)} passed\n" in done.stdout
    assert "json-schema: passed" in done.stderr, "progress is shown"
    found = json.loads(recorded.read_text())
    assert (found["model"], found["weights"], found["passed"]) == (MODEL, "real", True)
    assert [each["name"] for each in found["checks"]] == names
    assert all(each["compared"] and each["seen"] for each in found["checks"])
    assert {"allm", "llama-cpp-python"} <= found["versions"].keys()
    assert str(Path.home()) not in recorded.read_text(), "no path of the machine is recorded"
    model = json.loads(models("show", MODEL, "--json").stdout)["model"]
    assert model["keep_loaded"] is False, "it is left as it was"


def test_single_checks_can_be_chosen(models: ModelCommands) -> None:
    """Checks that are meaningless on random weights are skipped."""
    done = models("test", MODEL, "--check", "chat-template", "--check", "likelihood", "--random-weights", "--json")
    assert done.status == 0, done.stderr
    assert {name: each["verdict"] for name, each in done.checks.items()} == {
        "load": "passed",
        "chat-template": "passed",
        "likelihood": "skipped",
    }
    assert done.checks["likelihood"]["seen"] == "not meaningful on random weights"


def test_an_unknown_check_is_named(models: ModelCommands) -> None:
    done = models("test", MODEL, "--check", "taste")
    assert done.status == 1
    assert "there is no check 'taste'; there are load, chat-template," in done.stderr


def test_an_unknown_model_is_named(models: ModelCommands) -> None:
    done = models("test", "nobody")
    assert done.status == 1
    assert "nobody" in done.stderr
