"""Says whether the installed llama.cpp is what our options compile: `python llama_fixed.py`.

pip caches the wheel that it compiled, maybe with others. Exit status: 1 - the library is slow for want of llama_fixes.h
or llama_bf16.c, or takes no pictures for want of libmtmd.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

# By flag of a processor that gains: what a library contains that was compiled with the file.
MARKS = {" avx512_fp16 ": b"allm steps of 32", " amx_bf16 ": b"allm tiles of BF16"}
CPU_INFO = Path("/proc/cpuinfo")
FIRST_GCC = 12  # that knows these instructions


def is_slow(library: Path) -> bool:
    """Returns True if a library that GCC compiled for this processor was compiled without one of the files."""
    if "CMAKE_ARGS" in os.environ or not library.exists():
        return False
    flags, content = CPU_INFO.read_text("utf-8"), library.read_bytes()
    compiler = re.search(rb"GCC: \([^)]*\) (\d+)", content)
    known = compiler is not None and int(compiler[1]) >= FIRST_GCC
    return known and any(flag in flags and mark not in content for flag, mark in MARKS.items())


def is_blind(folder: Path) -> bool:
    """Returns True if a folder with llama.cpp's libraries has none for pictures."""
    return any(folder.glob("libllama.*")) and not any(folder.glob("libmtmd.*"))


def main() -> None:
    """Prints a line if the library is slow or takes no pictures."""
    spec = importlib.util.find_spec("llama_cpp")
    if not spec or not spec.origin:
        return
    folder = Path(spec.origin).parent / "lib"
    if is_slow(folder / "libggml-cpu.so"):
        print("the installed llama.cpp was compiled without llama_fixes.h or llama_bf16.c: it is slow", flush=True)
        sys.exit(1)
    if is_blind(folder):
        print("the installed llama.cpp was compiled without libmtmd: it takes no pictures", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
