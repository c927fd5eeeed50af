"""Converts a GGUF file to another precision: `python -m services.models.demo.requantize SOURCE TARGET bf16|f16`.

A separate process, because it loads llama.cpp; started by `services.models.demo.text_demo`.
"""

from __future__ import annotations

import ctypes
import os
import sys


def main() -> None:
    """Writes TARGET; exits with 1 if llama.cpp fails."""
    import llama_cpp  # noqa: PLC0415 (heavy: only where it is used)

    source, target, precision = sys.argv[1:]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = {"bf16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16, "f16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16}[precision]
    params.allow_requantize = True
    params.nthread = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    sys.exit(llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)) and 1)


if __name__ == "__main__":
    main()
