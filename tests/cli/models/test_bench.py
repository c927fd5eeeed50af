"""`allm models bench`: measurements, the recorded result, and the restored runtime."""

from __future__ import annotations

from pathlib import Path

import grpc
from allm.models.v1 import model_pb2
from allm.models.v1 import model_service_pb2 as pb

from services.cli.models.bench import prompt
from tests.cli.models.catalog_stand_in import MIB, Commands, Refusal, desired, replica


def two_runtimes(models: Commands) -> None:
    models.catalog.models = {"m": desired("m", replicas=[replica("ready")])}
    models.catalog.runtimes = {"llama_cpp": ("cpu", 200 * MIB), "torch": ("cpu", 300 * MIB)}
    models.catalog.resolutions = [
        pb.Resolution(
            replica="text",
            device="cpu",
            runtimes=[
                pb.RuntimeVerdict(runtime="llama_cpp", chosen=True, able=True, reason="first"),
                pb.RuntimeVerdict(runtime="torch", able=True, reason="not measured"),
                pb.RuntimeVerdict(runtime="vllm", reason="it does not run on cpu"),
            ],
        )
    ]


def test_every_able_runtime_is_measured_and_recorded(models: Commands) -> None:
    two_runtimes(models)
    done = models("bench", "m", "--tokens", "10", "--rounds", "2", "--prompt-tokens", "64")
    assert done.status == 0, done.stderr
    recorded = {request.benchmark.runtime: request.benchmark for request in models.catalog.requests("RecordBenchmark")}
    assert set(recorded) == {"llama_cpp", "torch"}
    for runtime, peak in (("llama_cpp", 200 * MIB), ("torch", 300 * MIB)):
        assert recorded[runtime].device == "cpu"
        assert recorded[runtime].peak_memory_bytes == peak
        assert 0 < recorded[runtime].tokens_per_second <= 1 / models.catalog.token_seconds
        assert recorded[runtime].first_token_seconds >= models.catalog.token_seconds
    assert "llama_cpp  cpu" in done.stdout
    assert "300 MiB" in done.stdout
    rounds = models.catalog.requests("StreamChatCompletion")
    assert len(rounds) == 2 * (1 + 2), "one warms up"
    assert all(each.sampling.ignore_eos and each.sampling.max_tokens == 10 for each in rounds)
    assert all(each.sampling.HasField("temperature") and each.sampling.temperature == 0 for each in rounds)
    assert not any(each.sampling.HasField("seed") for each in rounds)


def test_for_scripts_and_for_one_runtime(models: Commands) -> None:
    two_runtimes(models)
    (measured,) = models("bench", "m", "--runtime", "torch", "--rounds", "1", "--json").json["benchmarks"]
    assert (measured["runtime"], measured["device"], measured["peak_memory_bytes"]) == ("torch", "cpu", 300 * MIB)
    assert measured["tokens_per_second"] > 0


def test_no_prompt_begins_like_another() -> None:
    prompts = [prompt(128) for _ in range(20)]
    assert len({text[:8] for text in prompts}) == 20
    assert all(100 < len(text.split()) < 130 for text in prompts)


def test_afterwards_a_model_that_was_not_kept_is_not(models: Commands) -> None:
    two_runtimes(models)
    models("bench", "m", "--rounds", "1", "--tokens", "2")
    assert models.catalog.models["m"].model.keep_loaded is False
    assert models.catalog.models["m"].runtime == ""


def test_afterwards_a_model_that_was_kept_is_again_also_when_it_fails(models: Commands) -> None:
    two_runtimes(models)
    models.catalog.models["m"].model.keep_loaded = True
    models.catalog.models["m"].runtime = "llama_cpp"
    models.catalog.refuse["StreamChatCompletion"] = Refusal(grpc.StatusCode.INTERNAL, "the worker has crashed")
    done = models("bench", "m", "--runtime", "torch")
    assert done.status == 1
    assert "allm: the worker has crashed\n" in done.stderr
    assert models.catalog.models["m"].model.keep_loaded is True
    assert models.catalog.models["m"].runtime == "llama_cpp"
    assert not models.catalog.requests("RecordBenchmark")


def test_a_runtime_that_cannot_is_not_measured(models: Commands) -> None:
    two_runtimes(models)
    done = models("bench", "m", "--runtime", "vllm")
    assert done.status == 1
    assert done.stderr == "allm: m cannot be measured: vllm: it does not run on cpu\n"
    unknown = models("bench", "m", "--runtime", "nobody")
    assert "there is no runtime nobody; known are llama_cpp, torch, vllm" in unknown.stderr
    assert not models.catalog.requests("LoadModel")


def test_replicas_on_different_devices_cannot_be_distinguished(models: Commands) -> None:
    two_runtimes(models)
    models.catalog.runtimes = {}
    both = [replica("loaded", "text-1"), replica("loaded", "text-2", device="cuda")]
    models.catalog.models = {"m": desired("m", replicas=both)}
    done = models("bench", "m", "--runtime", "llama_cpp")
    assert done.status == 1
    assert "m runs on cpu and cuda" in done.stderr


def hearing(models: Commands) -> None:
    """Scripts an audio model with one runtime."""
    audio = {"modality": model_pb2.MODALITY_AUDIO, "capabilities": ["transcription", "translation"]}
    models.catalog.models = {"w": desired("w", replicas=[replica("ready", "audio")], **audio)}
    models.catalog.runtimes = {"faster_whisper": ("cpu", 120 * MIB)}
    verdict = pb.RuntimeVerdict(runtime="faster_whisper", chosen=True, able=True, reason="first")
    models.catalog.resolutions = [pb.Resolution(replica="audio", device="cpu", runtimes=[verdict])]


def test_an_audio_model_is_measured_with_a_recording(models: Commands, tmp_path: Path) -> None:
    hearing(models)
    sound = bytes(range(256)) * 2000  # more than one message
    (recording := tmp_path / "speech.wav").write_bytes(sound)
    done = models("bench", "w", "--audio", str(recording), "--rounds", "2")
    assert done.status == 0, done.stderr
    (request,) = models.catalog.requests("RecordBenchmark")
    assert (request.id, request.benchmark.runtime, request.benchmark.device) == ("w", "faster_whisper", "cpu")
    assert request.benchmark.peak_memory_bytes == 120 * MIB
    assert 0 < request.benchmark.tokens_per_second <= 1 / models.catalog.token_seconds
    assert request.benchmark.first_token_seconds >= models.catalog.token_seconds
    for name in ("Transcribe", "StreamTranscribe"):
        rounds = models.catalog.requests(name)
        assert len(rounds) == 1 + 2, "one warms up"
        for first, *others in rounds:
            assert (first.config.model, first.config.temperature) == ("w", 0)
            assert len(others) > 1
            assert b"".join(each.audio for each in others) == sound


def test_an_audio_model_needs_a_recording_of_speech(models: Commands, tmp_path: Path) -> None:
    hearing(models)
    done = models("bench", "w")
    assert done.status == 1
    assert done.stderr == "allm: w transcribes speech: give a recording with --audio FILE\n"
    missing = models("bench", "w", "--audio", str(tmp_path / "nothing.wav"))
    assert missing.status == 1
    assert f"allm: {tmp_path / 'nothing.wav'}: No such file or directory\n" in missing.stderr
    (silence := tmp_path / "silence.wav").write_bytes(b"RIFF")
    models.catalog.spoken = ""
    mute = models("bench", "w", "--audio", str(silence))
    assert mute.status == 1
    assert f"allm: w found no speech in {silence}: give a recording of speech\n" in mute.stderr
    assert not models.catalog.requests("RecordBenchmark")


def test_models_for_anything_else_are_not_measured_so_far(models: Commands) -> None:
    models.catalog.models = {"e": desired("e", capabilities=["embeddings"])}
    done = models("bench", "e")
    assert done.status == 1
    assert (
        "e is a model for embeddings: `allm models bench` measures only models that chat or transcribe" in done.stderr
    )


def test_without_a_service_nothing_is_measured(models: Commands) -> None:
    models.catalog.models = {"m": desired("m")}
    done = models("bench", "m")
    assert (done.status, done.stderr) == (1, "allm: no service for text models is running\n")
