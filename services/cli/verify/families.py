"""The smallest published models of each family, by format and architecture, for `allm models verify-families`.

A family's models are ordered by size. Every repository can be read without a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.cli.problem import Problem
from services.models.descriptor import Format

PREFIX = "verify/"  # the beginning of the ids under which they are registered


@dataclass(frozen=True, slots=True)
class Published:
    """A published model. `file`: its path in the repository; empty: the whole repository."""

    family: str
    repository: str
    format: Format
    file: str = ""

    @property
    def id(self) -> str:
        """The id under which it is registered for the checks."""
        return PREFIX + self.repository.partition("/")[2]

    @property
    def source(self) -> str:
        """Its source, as in `allm models add`."""
        return f"hf://{self.repository}" + (f"#{self.file}" if self.file else "")


PUBLISHED = (
    Published("gpt-oss", "openai/gpt-oss-20b", "safetensors"),
    Published("gpt-oss", "ggml-org/gpt-oss-20b-GGUF", "gguf", "gpt-oss-20b-mxfp4.gguf"),
    Published("Qwen", "Qwen/Qwen2.5-0.5B-Instruct", "safetensors"),
    Published("Qwen", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "gguf", "qwen2.5-0.5b-instruct-q8_0.gguf"),
    Published("Qwen", "Qwen/Qwen3-0.6B", "safetensors"),
    Published("Qwen", "Qwen/Qwen3-0.6B-GGUF", "gguf", "Qwen3-0.6B-Q8_0.gguf"),
    Published("Qwen", "Qwen/Qwen3-30B-A3B", "safetensors"),
    Published("Qwen", "Qwen/Qwen3-30B-A3B-GGUF", "gguf", "Qwen3-30B-A3B-Q4_K_M.gguf"),
    Published("GLM", "zai-org/glm-edge-1.5b-chat", "safetensors"),
    Published("GLM", "zai-org/GLM-4-9B-0414", "safetensors"),
    Published("GLM", "unsloth/GLM-4-9B-0414-GGUF", "gguf", "GLM-4-9B-0414-Q4_K_M.gguf"),
    Published("GLM", "zai-org/GLM-4.5-Air", "safetensors"),
    Published("Nemotron", "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", "safetensors"),
    Published("Nemotron", "unsloth/NVIDIA-Nemotron-3-Nano-4B-GGUF", "gguf", "NVIDIA-Nemotron-3-Nano-4B-Q4_K_M.gguf"),
    Published("Nemotron", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "safetensors"),
    Published(
        "Nemotron",
        "bartowski/nvidia_NVIDIA-Nemotron-Nano-9B-v2-GGUF",
        "gguf",
        "nvidia_NVIDIA-Nemotron-Nano-9B-v2-Q4_K_M.gguf",
    ),
    Published("Llama", "HuggingFaceTB/SmolLM2-135M-Instruct", "safetensors"),
    Published("Llama", "bartowski/SmolLM2-135M-Instruct-GGUF", "gguf", "SmolLM2-135M-Instruct-Q8_0.gguf"),
)


def chosen_families(names: Sequence[str]) -> list[Published]:
    """Returns the models of the named families, in any case; all if none is named. Raises Problem."""
    known = {each.family.lower(): each.family for each in PUBLISHED}
    for name in names:
        if name.lower() not in known:
            raise Problem(f"there is no family {name!r}; there are {', '.join(known.values())}")
    wanted = {name.lower() for name in names} or known.keys()
    return [each for each in PUBLISHED if each.family.lower() in wanted]
