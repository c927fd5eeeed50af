"""The family of a model, by its architecture's name in GGUF and config.json."""

from __future__ import annotations

# The first matching prefix counts.
_BEGINNINGS = (
    ("gpt-oss", "gpt"),
    ("gpt_oss", "gpt"),
    ("nemotron", "nemotron"),
    ("qwen", "qwen"),
    ("chatglm", "glm"),
    ("glm", "glm"),
    ("llama", "llama"),
)


def family_of(architecture: str) -> str:
    """Returns `gpt`, `nemotron`, `qwen`, `glm` or `llama`; else the architecture itself."""
    return next((family for start, family in _BEGINNINGS if architecture.startswith(start)), architecture)
