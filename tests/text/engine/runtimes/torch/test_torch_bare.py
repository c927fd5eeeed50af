"""The engine package runs with torch and transformers alone, so it can be tested on a bare GPU machine."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
    import sys

    ABSENT = {"msgspec", "llguidance", "llama_cpp", "grpc", "google", "starlette", "uvicorn", "allm", "redis"}

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ABSENT:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Blocker())
    import queue
    from services.text.engine.loop import BatchLoop
    from services.text.engine.request_loop import BatchLimits
    from services.text.engine.sequence import Sequence
    from services.text.engine.messages import EngineOptions, Stepped
    from services.text.engine.runtimes.torch.engine import SafetensorsEngine
    from services.text.engine.sampling import SamplingParams

    options = EngineOptions(
        model_id="m", path=sys.argv[1], threads=1, gpu=False, context_tokens=256, kv_tokens=512, max_sequences=2,
        batch_tokens=64, chunk_tokens=32, prefix_cache=True, dtype="float32",
    )
    engine = SafetensorsEngine(options, lambda fraction: None)
    inbox, pieces = queue.SimpleQueue(), []

    def take(message):
        assert isinstance(message, Stepped), message
        pieces.extend(message.pieces)

    loop = BatchLoop(engine, BatchLimits(2, 64, 32, 256), inbox, take)
    params = SamplingParams(temperature=0.8, seed=3, top_p=0.9, max_tokens=5, ignore_eos=True)
    inbox.put(Sequence(1, "a", engine.tokenize("hello"), params, None, 2))
    while not any(piece.finish for piece in pieces):
        loop.turn()
    print(pieces[-1].completion_tokens, pieces[-1].finish)
"""


def test_it_answers_without_any_other_library_of_ours(llama: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(llama)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", "length"]
    assert done.stderr == ""
