"""Ollama's official package pulls a model of the hub, uses it, and deletes it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ollama
import pytest

from services.models.demo.text_demo import bundled_model
from tests.loopback_hub import LoopbackHub
from tests.operator_side import Operator

pytestmark = pytest.mark.slow
NAME = "hf.co/org/ollama-small-GGUF:Q4_K_M"


@pytest.fixture(scope="session")
def pulled(session_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Adds the bundled model to the hub; returns the name that Ollama's users write."""
    folder, source = tmp_path_factory.mktemp("ollama-hub"), bundled_model()
    assert source is not None
    shutil.copy(source, folder / "small.Q4_K_M.gguf")
    session_hub.add("org/ollama-small-GGUF", folder)
    return NAME


def test_a_model_is_pulled_used_and_deleted(operator: Operator, hub: LoopbackHub, pulled: str, tmp_path: Path) -> None:
    with ollama.Client(f"http://127.0.0.1:{operator.stack.port}") as client:
        first, *others = client.pull(pulled, stream=True)
        assert first.status == "pulling manifest"
        assert others[-1].status == "success"
        size = bundled_size()
        downloads = [line for line in others if line.digest]
        assert {line.total for line in downloads} <= {size}
        assert pulled in {model.model for model in client.list().models}
        assert client.show(pulled).details.quantization_level == "Q4_K_M"  # type: ignore[union-attr]
        answer = client.generate("huggingface.co/" + pulled.removeprefix("hf.co/"), "Hi", options={"num_predict": 2})
        assert answer.eval_count == 2
        assert client.pull(pulled).status == "success"
        client.delete(pulled)
        assert pulled not in {model.model for model in client.list().models}
        assert problem(lambda: client.delete(pulled)) == 404
        assert problem(lambda: client.pull("llama3.2")) == 400
        assert problem(lambda: list(client.pull("hf.co/org/ollama-small-GGUF:Q8_0", stream=True))) == 400


def bundled_size() -> int:
    source = bundled_model()
    assert source is not None
    return source.stat().st_size


def problem(call: Any) -> int:
    with pytest.raises(ollama.ResponseError) as caught:
        call()
    return caught.value.status_code
