"""Runtime and engine settings of a model on a running stack: their effect, and a runtime that is not installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from services.models.runtimes import VLLM_MISSING
from tests.demo_model import demo_model
from tests.operator_side import Operator
from tests.registration.model_folders import safetensors_model

pytestmark = pytest.mark.slow

LONG = "One two three four five six seven eight nine ten. " * 20


def test_its_settings_count_and_may_change_while_it_serves(operator: Operator, folder: Path) -> None:
    shutil.copy(demo_model(), folder / "m.gguf")
    model = operator.taken("m", folder / "m.gguf", "gguf", runtime="llama_cpp", engine={"context_tokens": 128})
    assert (model["asked_runtime"], model["engine"]) == ("llama_cpp", {"context_tokens": 128})
    operator.until_state("m", "ready")
    short = operator.chat("m", LONG)
    assert (short.status, short.error["code"]) == (400, "context_length_exceeded"), short
    assert "128" in short.error["message"]
    assert operator.chat("m", "Hi.", max_tokens=2).status == 200
    changed = operator.verb("m", "update", {"engine": {"context_tokens": 1024}}).model
    assert (changed["generation"], changed["asked_runtime"]) == ("2", "llama_cpp")

    def replaced() -> bool:
        (replica,) = operator.all()["m"]["replicas"]
        return replica["generation"] == 2 and replica["state"] in ("ready", "loaded")

    operator.until(replaced)
    assert operator.chat("m", LONG, max_tokens=2).status == 200


def test_a_runtime_that_is_not_installed_says_how_to_install_it(operator: Operator, folder: Path) -> None:
    operator.taken("st", safetensors_model(folder / "st", "llama"), "safetensors", runtime="vllm")
    shown = operator.until_state("st", "unsupported")
    assert shown["reason"] == f"st: the requested runtime 'vllm' cannot run it here: {VLLM_MISSING}"
    refused = operator.verb("st", "load", {"runtime": "vllm"})
    assert (refused.status, refused.error["param"]) == (400, "runtime")
    assert VLLM_MISSING in refused.error["message"]
    operator.verb("st", "update", {"runtime": ""})
    assert operator.until_state("st", "ready")["runtime"] == "torch", "nothing changes for the others"
