"""Says whether the installed llama.cpp has what llama_fixes.h and llama_bf16.c speed up: `python llama_fixed.py`.

pip caches the wheel that it compiled, maybe without them. Exit status: 1 - the library is slow for want of them.
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


def main() -> None:
    """Prints a line if the library is slow."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec and spec.origin and is_slow(Path(spec.origin).parent / "lib" / "libggml-cpu.so"):
        print("the installed llama.cpp was compiled without llama_fixes.h or llama_bf16.c: it is slow", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
