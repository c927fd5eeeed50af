"""Tests the check that the installed llama.cpp was compiled with llama_fixes.h, and that the header has an effect."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

HEADER = Path(__file__).parents[2] / "containers" / "llama_fixes.h"


@pytest.fixture
def llama_fixed() -> ModuleType:
    spec = importlib.util.spec_from_file_location("llama_fixed", HEADER.with_name("llama_fixed.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_vectors_of_16_bits_are_added_in_steps_of_a_register(tmp_path: Path) -> None:
    (tmp_path / "simd-mappings.h").write_text("#define GGML_F16_STEP 128")
    for flags, step in (["-D__AVX512FP16__"], "32"), (["-U__AVX512FP16__"], "GGML_F16_STEP"):
        command = ["c++", "-E", *flags, "-I", tmp_path, "-include", HEADER, "-xc++", "-"]
        made = subprocess.run(command, input="GGML_F16_STEP", capture_output=True, text=True, check=True).stdout
        assert made.splitlines()[-1] == step


def test_a_cached_library_without_the_faster_steps_is_found(
    llama_fixed: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library, processor = tmp_path / "libggml-cpu.so", tmp_path / "cpuinfo"
    monkeypatch.setattr(llama_fixed, "CPU_INFO", processor)
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    made = f'__asm__(".ident \\"{llama_fixed.MARK.decode()}\\"");'
    assert made in HEADER.read_text()
    for flag, content, slow in (
        (" avx512_fp16 ", b"GCC: (Debian 12.2.0-14) 12.2.0\0", True),
        (" avx512_fp16 ", b"GCC: (Debian 12.2.0-14) 12.2.0\0" + llama_fixed.MARK, False),
        (" avx512_fp16 ", b"GCC: (Ubuntu 11.4.0) 11.4.0\0", False),
        (" avx512_fp16 ", b"clang version 19.1\0", False),
        (" avx512f ", b"GCC: (Debian 12.2.0-14) 12.2.0\0", False),
    ):
        library.write_bytes(content)
        processor.write_text(f"flags : fpu{flag}amx_tile\n")
        assert llama_fixed.is_slow(library) is slow
    assert not llama_fixed.is_slow(tmp_path / "missing.so")
