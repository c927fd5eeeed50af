"""`allm models verify-families` on a hub on loopback, with small real weights under the published names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from allm.models.v1 import machine_service_pb2, model_pb2

from services.cli.problem import Problem
from services.cli.verify.families import PREFIX, PUBLISHED, chosen_families, lack_of_memory
from services.models.hub.source import parse_source
from tests.demo_model import demo_model, demo_safetensors
from tests.loopback_hub import LoopbackHub
from tests.operator_side import Operator
from tests.verification.model_commands import ModelCommands
from tests.verification.test_verified_families import write_glm4_moe

GIB = 1024**3
LLAMA, LLAMA_GGUF = (each for each in PUBLISHED if each.family == "Llama")
GLM = next(each for each in PUBLISHED if each.repository == "zai-org/GLM-4.5-Air")
# The other checks need many tokens, and run in other tests.
CHECKS = ("--check", "chat-template", "--check", "likelihood")


@pytest.fixture(scope="module")
def published(session_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Publishes SmolLM2 in both formats, and random weights as a GLM."""
    top = tmp_path_factory.mktemp("published")
    (top / "gguf").mkdir()
    shutil.copy(demo_model(), top / "gguf" / LLAMA_GGUF.file)
    session_hub.add(LLAMA_GGUF.repository, top / "gguf")
    session_hub.add(LLAMA.repository, demo_safetensors())
    session_hub.add(GLM.repository, write_glm4_moe(top / "glm"))


@pytest.fixture
def models(shared_operator: Operator, published: None) -> Iterator[ModelCommands]:
    commands = ModelCommands(shared_operator.stack)
    yield commands
    for model_id in shared_operator.all():
        if model_id.startswith(PREFIX):
            shared_operator.delete(model_id)


def results(stdout: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Returns the result and its detail by source and runtime."""
    found = json.loads(stdout)["results"]
    return {(each["source"], each["runtime"]): (each["result"], each["detail"]) for each in found}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_family_is_fetched_tested_recorded_and_removed(
    models: ModelCommands, shared_operator: Operator, session_hub: LoopbackHub, tmp_path: Path
) -> None:
    session_hub.requests.clear()
    before = set(shared_operator.all())
    command = ("verify-families", "--family", "llama", "--into", tmp_path / "records", "--json", *CHECKS)
    done = models(*command)
    assert done.status == 0, done.stdout + done.stderr
    found = results(done.stdout)
    assert (
        found[LLAMA.source, "torch"]
        == found[LLAMA_GGUF.source, "llama_cpp"]
        == ("passed", "3 checks passed, 0 skipped")
    )
    verdict, why = found[LLAMA.source, "vllm"]
    assert (verdict, bool(why)) == ("not run", True), "vLLM is not installed here"
    assert session_hub.asked(LLAMA_GGUF.file, cdn=True), "the real fetch brought the weights"
    records = {path.name: json.loads(path.read_text()) for path in (tmp_path / "records").iterdir()}
    assert set(records) == {
        "verify_SmolLM2-135M-Instruct-torch-cpu.json",
        "verify_SmolLM2-135M-Instruct-GGUF-llama_cpp-cpu.json",
    }
    for record in records.values():
        assert (record["weights"], record["passed"], record["architecture"]) == ("real", True, "llama")
        assert record["source"].startswith("hf://")
    assert set(shared_operator.all()) == before
    folder = shared_operator.stack.home / "models"
    shared_operator.until(lambda: not [path for path in folder.rglob("*.gguf") if "verify" in str(path)])
    session_hub.requests.clear()
    repeated = models(*command)
    assert repeated.status == 0, repeated.stderr
    assert results(repeated.stdout)[LLAMA.source, "torch"] == ("passed", "recorded by an earlier run")
    assert not session_hub.asked(LLAMA_GGUF.file), "what has passed is not fetched again"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_fails_or_cannot_run_is_never_green(models: ModelCommands, tmp_path: Path) -> None:
    models("add", GLM.id, GLM.source, "--format", GLM.format)  # as an interrupted run leaves it
    done = models("verify-families", "--family", "GLM", "--into", tmp_path, *CHECKS)
    assert done.status == 1
    assert "0 passed, 1 failed" in done.stdout
    assert "likelihood failed" in done.stdout, "its weights are random"
    (record,) = tmp_path.iterdir()
    assert json.loads(record.read_text())["passed"] is False
    missing = models("verify-families", "--family", "Qwen", "--into", tmp_path, "--json")
    assert missing.status == 1, "nothing was tested"
    assert {verdict for verdict, _ in results(missing.stdout).values()} == {"not run"}
    assert all("Qwen/" in why for _, why in results(missing.stdout).values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_disk_that_is_too_small_and_an_id_of_another_model_are_reasons(
    models: ModelCommands, shared_operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1024))  # type: ignore[attr-defined]
    shared_operator.taken(LLAMA.id, f"hf://{GLM.repository}", "safetensors")
    found = results(models("verify-families", "--family", "Llama", "--into", tmp_path, "--json").stdout)
    assert found[LLAMA.source, "torch"] == (
        "not run",
        f"the id {LLAMA.id} belongs to another model: hf://{GLM.repository}",
    )
    verdict, why = found[LLAMA_GGUF.source, "llama_cpp"]
    assert verdict == "not run"
    assert "1.0 KiB are free" in why
    assert LLAMA.id in shared_operator.all(), "another's model stays"
    assert not list(tmp_path.iterdir())


def test_weights_larger_than_the_memory_are_not_run() -> None:
    host = machine_service_pb2.Host(total_bytes=10 * GIB, threshold_share=0.8)
    host.devices.add(name="cuda:0", total_bytes=5 * GIB)
    sample = machine_service_pb2.MachineSample(hosts=[host])
    packed = model_pb2.Model(size_bytes=3 * GIB, unpacked_bytes=9 * GIB)
    assert lack_of_memory(packed, "cuda", sample) == ""
    assert "its weights take 9.0 GiB; of the memory 8.0 GiB may be used" in lack_of_memory(packed, "cpu", sample)
    large = model_pb2.Model(size_bytes=6 * GIB)
    assert lack_of_memory(large, "cpu", sample) == ""
    assert "of the memory of the GPU (cuda) 4.5 GiB" in lack_of_memory(large, "cuda", sample)
    assert lack_of_memory(large, "cuda", machine_service_pb2.MachineSample()) == "", "the memory is not known"


def test_each_family_has_models_of_both_formats() -> None:
    for family in {each.family for each in PUBLISHED}:
        assert {each.format for each in chosen_families([family.upper()])} == {"safetensors", "gguf"}
    assert len({each.id for each in PUBLISHED}) == len(PUBLISHED)
    for each in PUBLISHED:
        parse_source(each.source, ())
        assert bool(each.file) == (each.format == "gguf")
    with pytest.raises(Problem, match="there is no family 'Gemma'; there are gpt-oss, Qwen, GLM, Nemotron, Llama"):
        chosen_families(["Gemma"])
