"""Models for tests of the torch runtime: the demo weights, and small random models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demo_model import demo_safetensors
from tests.late import late
from tests.text.engine.session import options
from tests.text.families.published_configs import GPT_OSS, LLAMA_32
from tests.text.families.random_models import write_model

torch_engine = late("services.text.engine.runtimes.torch.engine")


@pytest.fixture(scope="package")
def demo() -> torch_engine.SafetensorsEngine:
    """Real weights in this machine's precision, on one thread because others may use the machine."""
    fractions: list[float] = []
    loaded = torch_engine.SafetensorsEngine(options(demo_safetensors(), threads=1), fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    return loaded


@pytest.fixture(scope="package")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights and eight heads over two key heads."""
    return write_model(tmp_path_factory.mktemp("llama"), LLAMA_32)


@pytest.fixture(scope="package")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gpt-oss with random weights, experts, sinks and sliding windows."""
    return write_model(tmp_path_factory.mktemp("gpt-oss"), GPT_OSS)
