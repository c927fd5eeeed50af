"""Tests the check that the installed llama.cpp was compiled with our files, and that llama_fixes.h has an effect."""

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


def test_a_cached_library_that_was_compiled_without_the_files_is_found(
    llama_fixed: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library, processor = tmp_path / "libggml-cpu.so", tmp_path / "cpuinfo"
    monkeypatch.setattr(llama_fixed, "CPU_INFO", processor)
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    steps, tiles = llama_fixed.MARKS.values()
    for mark, file in (steps, "llama_fixes.h"), (tiles, "llama_bf16.c"):
        assert f'__asm__(".ident \\"{mark.decode()}\\"");' in HEADER.with_name(file).read_text()
    gcc = b"GCC: (Debian 12.2.0-14) 12.2.0\0"
    for flags, content, slow in (
        (" avx512_fp16 ", gcc, True),
        (" avx512_fp16 ", gcc + steps, False),
        (" avx512_fp16 amx_bf16 ", gcc + steps, True),
        (" avx512_fp16 amx_bf16 ", gcc + steps + tiles, False),
        (" avx512_fp16 ", b"GCC: (Ubuntu 11.4.0) 11.4.0\0", False),
        (" avx512_fp16 ", b"clang version 19.1\0", False),
        (" avx512f ", gcc, False),
    ):
        library.write_bytes(content)
        processor.write_text(f"flags : fpu{flags}amx_tile\n")
        assert llama_fixed.is_slow(library) is slow
    assert not llama_fixed.is_slow(tmp_path / "missing.so")


def test_a_cached_library_that_takes_no_pictures_is_found(llama_fixed: ModuleType, tmp_path: Path) -> None:
    assert not llama_fixed.is_blind(tmp_path), "it is not installed"
    (tmp_path / "libllama.so").touch()
    assert llama_fixed.is_blind(tmp_path)
    (tmp_path / "libmtmd.so").touch()
    assert not llama_fixed.is_blind(tmp_path)
