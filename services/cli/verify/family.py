"""Which family a model belongs to, by its architecture as GGUF and config.json spell it."""

from __future__ import annotations

# The first whose beginning fits.
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
    """`gpt`, `nemotron`, `qwen`, `glm` or `llama`; else the architecture itself."""
    return next((family for start, family in _BEGINNINGS if architecture.startswith(start)), architecture)
