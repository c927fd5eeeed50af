"""`allm models` with a transcription model in the running stack."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.speech import librivox
from tests.stack import SPEECH_MODEL, Stack, environment

SECONDS = 150


def allm(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", "models", *arguments]
    return subprocess.run(
        command, env=environment(stack.home), capture_output=True, text=True, check=False, timeout=SECONDS
    )


def test_it_is_measured_with_a_recording_and_the_figures_decide(stack: Stack) -> None:
    recording = str(librivox()[0].path)
    measured = allm(stack, "bench", SPEECH_MODEL, "--audio", recording, "--rounds", "1", "--json")
    assert measured.returncode == 0, measured.stderr
    (figures,) = json.loads(measured.stdout)["benchmarks"]
    assert figures["runtime"] == "faster_whisper"
    assert figures["tokens_per_second"] > 0
    assert figures["first_token_seconds"] > 0
    assert int(figures["peak_memory_bytes"]) > 0
    explained = allm(stack, "why", SPEECH_MODEL, "--json")
    (resolution,) = json.loads(explained.stdout)["resolutions"]
    (chosen,) = [verdict for verdict in resolution["runtimes"] if verdict.get("chosen")]
    assert (resolution["replica"], chosen["runtime"]) == ("audio", "faster_whisper")
    assert chosen["reason"].startswith("the best measured: ")


def test_the_checks_of_text_models_are_not_for_it(stack: Stack) -> None:
    refused = allm(stack, "test", SPEECH_MODEL)
    assert refused.returncode == 1
    assert "tests only text models" in refused.stderr
