"""Says whether the installed llama.cpp has what llama_fixes.h speeds up: `python containers/llama_fixed.py`.

pip caches the wheel that it compiled, maybe without the header. Exit status: 1 - the library is slow for want of it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

MARK = b"allm steps of 32"  # in a library that was compiled with it
CPU_INFO = Path("/proc/cpuinfo")
FIRST_GCC = 12  # that knows these instructions


def is_slow(library: Path) -> bool:
    """Returns True if a library that GCC compiled for this processor was compiled without the header."""
    if "CMAKE_ARGS" in os.environ or not library.exists() or " avx512_fp16 " not in CPU_INFO.read_text("utf-8"):
        return False
    content = library.read_bytes()
    compiler = re.search(rb"GCC: \([^)]*\) (\d+)", content)
    return compiler is not None and int(compiler[1]) >= FIRST_GCC and MARK not in content


def main() -> None:
    """Prints a line if the library is slow."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec and spec.origin and is_slow(Path(spec.origin).parent / "lib" / "libggml-cpu.so"):
        print("the installed llama.cpp was compiled without containers/llama_fixes.h: attention is slow", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
