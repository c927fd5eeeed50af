"""Speculation on real models in float32: every token, logprob and end is that without it.

llama.cpp's logits differ by 0.0005 between steps of different sizes, also without speculation. Its random answers are
cooler, so that no random number comes that close to another token.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from typing import Any

import pytest

from services.text.engine.loop import BatchLoop
from services.text.engine.messages import Piece, Stepped
from services.text.engine.request_loop import BatchLimits
from services.text.engine.runtime import Runtime
from services.text.engine.runtimes.llama_cpp import LlamaEngine
from services.text.engine.sampling import SamplingParams
from services.text.engine.sequence import Sequence
from services.text.engine.speculation import measured_costs
from tests.demo_model import demo_model_f32, demo_safetensors
from tests.late import late
from tests.text.engine.session import options
from tests.text.engine.test_speculation import FREE, Steady

torch_engine = late("services.text.engine.runtimes.torch.engine")

CODE = """def total(first, second):
    return first + second

def mean(first, second):
    return total(first, second) / 2
"""
EDIT = f"Write this code again, without any change:\n```python\n{CODE}```"
PEOPLE = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 6} for name in ("first", "second")},
    "required": ["first", "second"],
    "additionalProperties": False,
}
GRAMMAR = json.dumps({"grammars": [{"json_schema": PEOPLE}]})
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seed": {"temperature": 0.8, "seed": 5},
    "another answer": {"temperature": 0.8, "seed": 6},
    "cut": {"temperature": 0.8, "seed": 7, "top_p": 0.8, "top_k": 40, "min_p": 0.02},
    "penalties": {"repeat_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    "bias": {"logit_bias": ((28, -5.0),), "temperature": 0.8, "seed": 8},
    "stop": {"stop": ("mean",)},
    "logprobs": {"logprobs": 3},
    "grammar": {"grammar": GRAMMAR},
    "past the end": {"ignore_eos": True},
}


def llama() -> Runtime:
    return LlamaEngine(options(demo_model_f32(), kv_tokens=4096, threads=1), lambda _: None)


def torch() -> Runtime:
    return torch_engine.SafetensorsEngine(
        options(demo_safetensors(), kv_tokens=4096, threads=1, dtype="float32"), lambda _: None
    )


def run(engine: Runtime, costs: Steady | None, warmth: float = 1.0) -> tuple[dict[str, list[Piece]], Any]:
    """Answers all requests side by side. `warmth` is multiplied with their temperatures."""
    for sequence in range(engine.sequence_ids):
        engine.drop(sequence)
    inbox: queue.SimpleQueue = queue.SimpleQueue()
    pieces: dict[str, list[Piece]] = {name: [] for name in ASKED}
    names, seen = list(ASKED), []

    def take(message: object) -> None:
        assert isinstance(message, Stepped), message
        seen.append(message.counters)
        for piece in message.pieces:
            pieces[names[piece.request]].append(piece)

    loop = BatchLoop(engine, BatchLimits(8, 512, 64, 0), inbox, take, costs=costs)
    prompt = f"<|im_start|>user\n{EDIT}<|im_end|>\n<|im_start|>assistant\n"
    for number, given in enumerate(ASKED.values()):
        params = {"temperature": 0, "max_tokens": 24} | given
        params["temperature"] *= warmth
        asked = {name: params.pop(name) for name in ("logprobs",) if name in params}
        constraint = engine.constraint(params.pop("grammar")) if "grammar" in params else None
        inbox.put(Sequence(number, "a", engine.tokenize(prompt), SamplingParams(**params), constraint, **asked))
    while not all(each and each[-1].finish for each in pieces.values()):
        loop.turn()
    assert seen[-1].active_cells == 0
    return pieces, seen[-1]


@pytest.mark.parametrize(("load", "warmth"), [(llama, 0.25), pytest.param(torch, 1.0, marks=pytest.mark.slow)])
def test_answers_are_those_without_speculation(load: Callable[[], Runtime], warmth: float) -> None:
    engine = load()
    plain, before = run(engine, None, warmth)
    guessed, after = run(engine, Steady(FREE), warmth)
    for name in ASKED:
        assert "".join(piece.text for piece in guessed[name]) == "".join(piece.text for piece in plain[name]), name
        ends = [(each[-1].finish, each[-1].completion_tokens) for each in (guessed[name], plain[name])]
        assert ends[0] == ends[1], name
    ours, theirs = (
        [each for piece in found["logprobs"] for each in piece.logprobs or ()] for found in (guessed, plain)
    )
    assert [each.piece for each in ours] == [each.piece for each in theirs]
    assert [each.logprob for each in ours] == pytest.approx([each.logprob for each in theirs], abs=1e-3)
    assert before.drafted == 0
    assert after.accepted > 40
    assert after.steps < before.steps
    assert measured_costs(engine, 512) is not None
