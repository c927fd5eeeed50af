"""The static vLLM tables against an installed vLLM; `make vllm` creates its environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from services.models.runtimes import (
    RUNTIMES,
    VLLM_CPU_DECODERS,
    VLLM_CPU_QUANTIZATIONS,
    VLLM_DECODERS,
    VLLM_QUANTIZATIONS,
)

PYTHON = Path(__file__).parents[2] / ".venv" / "vllm" / "bin" / "python"
SECONDS = 300.0  # importing vLLM and torch on a busy machine
# Every model_type of transformers whose class has a decoder in vLLM, with the sub_configs of its config class.
ASK = """
import importlib, json
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.model_executor.models.registry import _TEXT_GENERATION_MODELS as DECODERS

def names(found):
    return (found,) if isinstance(found, str) else found

types = [kind for kind, found in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if set(names(found)) & set(DECODERS)]
parts = {kind: sorted(getattr(CONFIG_MAPPING[kind], "sub_configs", {})) for kind in types}
absent = {}
for kind in types:
    for module, _ in [DECODERS[found] for found in names(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]) if found in DECODERS]:
        try:
            importlib.import_module(module if "." in module else f"vllm.model_executor.models.{module}")
        except Exception as error:
            absent[kind] = repr(error)
print(json.dumps({"parts": parts, "methods": QUANTIZATION_METHODS, "absent": absent}))
"""
SEE_OR_HEAR = {"vision_config", "audio_config", "text_config"}


@pytest.fixture(scope="module")
def reported() -> dict[str, object]:
    if not PYTHON.exists():
        pytest.skip("make vllm has not been run")
    done = subprocess.run(
        [str(PYTHON), "-c", ASK], capture_output=True, text=True, check=False, timeout=SECONDS, cwd="/"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_decoders_are_those_of_the_installed_vllm(reported: dict[str, dict[str, list[str]]]) -> None:
    whole = {kind for kind, parts in reported["parts"].items() if not SEE_OR_HEAR & set(parts)}
    assert whole == VLLM_DECODERS


@pytest.mark.slow
def test_those_for_cpus_can_at_least_be_imported_without_a_gpu(reported: dict[str, dict[str, str]]) -> None:
    assert {kind: why for kind, why in reported["absent"].items() if kind in VLLM_CPU_DECODERS} == {}


@pytest.mark.slow
def test_it_has_every_method_of_the_quantised_weights(reported: dict[str, list[str]]) -> None:
    assert {each.partition(":")[2] for each in VLLM_QUANTIZATIONS} <= set(reported["methods"])


def test_quantised_architectures_are_supported_ones() -> None:
    assert {each.partition(":")[0] for each in VLLM_QUANTIZATIONS} <= VLLM_DECODERS
    assert VLLM_CPU_QUANTIZATIONS < VLLM_QUANTIZATIONS
    assert VLLM_CPU_DECODERS < VLLM_DECODERS
    assert {each.partition(":")[0] for each in VLLM_CPU_QUANTIZATIONS} <= VLLM_CPU_DECODERS
    (vllm,) = [runtime for runtime in RUNTIMES if runtime.name == "vllm"]
    assert vllm.missing, "until its service has found it"
    assert [runtime.name for runtime in RUNTIMES if runtime.pipelines] == ["vllm"]
