"""Loading of GGUF files with llama.cpp, for generation and embeddings, and llama.cpp's error messages."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from typing import Any

import llama_cpp

from services.text.engine.messages import EngineOptions
from services.worker.ggml_devices import ggml_devices
from services.worker.messages import EngineError

log = logging.getLogger(__name__)

MICRO_BATCH = 512  # maximum tokens of a llama.cpp graph
_LOG_ERROR = 4
_LOG_WARNING = 3
_SUMMARY = "failed to load model"  # the last line, which would hide the cause before it
_errors: list[str] = []


def load_model(options: EngineOptions, progress: Callable[[float], None]) -> Any:
    """Loads the file that the options name, with all layers on the GPU if one is requested.

    Raises EngineError: MODEL_INVALID if llama.cpp cannot read it, UNSUPPORTED if it has no such GPU.
    """
    llama_cpp.llama_log_set(log_callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()

    @llama_cpp.llama_progress_callback
    def on_progress(fraction: float, _: Any) -> bool:
        progress(fraction)
        return True

    params = llama_cpp.llama_model_default_params()
    # Without a GPU none may be seen: by default llama.cpp would still use one for large batches.
    devices = (ctypes.c_void_p * 2)(gpu_handle(options) if options.gpu else None, None)  # ends with a null
    params.devices = ctypes.cast(devices, ctypes.c_void_p)
    params.n_gpu_layers = -1 if options.gpu else 0
    params.progress_callback = on_progress
    if not options.gpu:
        # Read into memory instead of mapping: worker_environ puts it into huge pages, and decoding is a tenth faster.
        params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
    model = llama_cpp.llama_model_load_from_file(os.fsencode(options.path), params)
    if not model:
        raise EngineError("MODEL_INVALID", f"llama.cpp cannot load {options.path}: {last_error()}")
    return model


def gpu_handle(options: EngineOptions) -> int:
    """Returns the handle of the best GPU of the requested kind. Without this check llama.cpp would silently compute on
    the processor.
    """
    found = ggml_devices() if llama_cpp.llama_supports_gpu_offload() else []
    handle = next((one.handle for one in found if options.device in ("", one.kind)), None)
    if handle is None:
        wanted = options.device or "a GPU"
        message = f"llama.cpp cannot compute on {wanted} in this process: `allm doctor` says how to build it"
        raise EngineError("UNSUPPORTED", message)
    return handle


def last_error() -> str:
    """Returns llama.cpp's last error message."""
    return _errors[-1] if _errors else "no reason given"


@llama_cpp.llama_log_callback
def log_callback(level: int, text: bytes, _: Any) -> None:
    """Logs llama.cpp's warnings and errors, and keeps the last error."""
    if level < _LOG_WARNING or level > _LOG_ERROR:
        return
    line = text.decode(errors="replace").strip()
    if level == _LOG_ERROR and line and not (_errors and line.endswith(_SUMMARY)):
        _errors[:] = [line]
    log.log(logging.ERROR if level == _LOG_ERROR else logging.WARNING, "llama.cpp: %s", line)
