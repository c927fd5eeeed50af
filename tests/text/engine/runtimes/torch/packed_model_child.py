"""Loads a model with packed experts, then with expanded ones, and prints a line of JSON for each."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.text.families.family_checks import prompt
from tests.text.families.torch_session import alone, load


def main() -> None:
    """Answers the same prompt with both."""
    for interpret in ("1", "0"):
        os.environ["TRITON_INTERPRET"] = interpret  # weights.py expands the experts without it
        engine = load(Path(sys.argv[1]), "float32")
        model = engine.executor._model
        answer = alone(engine, prompt(8), max_tokens=1)
        sizes = sum(each.nbytes for each in model.parameters())
        experts = type(model.model.layers[0].mlp.experts).__name__
        logprobs = [value for _, value in sorted(answer.logprobs[0].items())]
        print(json.dumps({"experts": experts, "bytes": sizes, "logprobs": logprobs}), flush=True)


if __name__ == "__main__":
    main()
