"""Constrained answers and logprobs of the llama_cpp runtime, on real weights."""

from __future__ import annotations

import json
import random

import llama_cpp
import numpy as np
import pytest
from llguidance import LLMatcher

from services.text.engine.runtime import Sampled, TokenSpan
from services.text.engine.runtimes.llama_cpp import LlamaEngine
from services.text.engine.sampling import SamplingParams
from services.worker.messages import Cancel, EngineError
from tests.demo_model import demo_model
from tests.text.engine.session import Session, options

CAPITAL = "What is the capital of France?"


def grammar(schema: object, *, flexible: bool = False) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": flexible})


def closed(**properties: object) -> dict[str, object]:
    """Returns the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


class Schemas:
    """Random schemas from the few keywords that `satisfies` checks."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311

    def make(self, depth: int = 2) -> dict[str, object]:
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
        kind = self.rng.choice(kinds + ["object", "array", "anyOf"] * (2 if depth else 0))
        if kind == "object":
            return closed(**{f"{self.rng.choice('xyzé')}{at}": self.make(depth - 1) for at in range(self.count())})
        if kind == "array":
            return {"type": "array", "items": self.make(depth - 1), "minItems": 1, "maxItems": self.count()}
        if kind == "anyOf":
            return {"anyOf": [self.make(depth - 1) for _ in range(self.count())]}
        return {
            "string": {"type": "string", "minLength": 1, "maxLength": self.rng.randint(1, 6)},
            "integer": {"type": "integer", "minimum": -20, "maximum": self.rng.randint(0, 300)},
            "number": {"type": "number", "minimum": 0, "maximum": 2},
            "enum": {"enum": ["one", "two words", "drei 🦊", 4, None]},
            "const": {"const": {"fixed": [1, '\\ "quoted" \n']}},
        }.get(kind, {"type": kind})

    def count(self) -> int:
        return self.rng.randint(1, 3)


def satisfies(value: object, schema: dict[str, object]) -> bool:  # noqa: PLR0911
    if "anyOf" in schema:
        return any(satisfies(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return value == schema["const"]
    match schema["type"]:
        case "object":
            properties = schema["properties"]
            same = isinstance(value, dict) and list(value) == list(properties)
            return same and all(satisfies(value[key], properties[key]) for key in value)
        case "array":
            counted = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
            return counted and all(satisfies(each, schema["items"]) for each in value)
        case "string":
            return isinstance(value, str) and schema["minLength"] <= len(value) <= schema["maxLength"]
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    return type(value) in (int, float) and schema["minimum"] <= value <= schema["maximum"]


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "seeds"), [(0.0, (0, 1)), (0.7, (1, 2)), (1.5, (2, 0))])
def test_answers_always_parse_and_satisfy_their_schema(
    engine: LlamaEngine, temperature: float, seeds: tuple[int, int]
) -> None:
    """Six constrained requests run with two free ones, greedy and sampled."""
    whole = 0
    for seed in seeds:
        made = Schemas(seed)
        schemas = {request: made.make() for request in range(6)}
        session = Session(engine)
        for request, schema in schemas.items():
            params = {"repeat_penalty": 1.2} if request % 3 == 1 else {"top_p": 0.9} if request % 3 == 2 else {}
            question = f"Write JSON about fox {request}."
            params |= {"max_tokens": 80, "temperature": temperature, "ignore_eos": request == 0}
            session.ask(request, question, grammar=grammar(schema), **params)
        session.ask(6, CAPITAL)
        session.ask(7, CAPITAL, temperature=temperature)
        session.finish(8)
        for request, schema in schemas.items():
            if session.ended[request].finish == "length":
                assert session.ended[request].completion_tokens == 80
                continue
            value = json.loads(session.text[request])
            assert satisfies(value, schema), (schema, value)
            whole += 1
        assert session.text[6] == "The capital of France is Paris."
    assert whole >= 6, "only numbers of endless digits run into the limit"


def test_whitespace_between_values_may_be_allowed(engine: LlamaEngine) -> None:
    session = Session(engine)
    schema = closed(a={"enum": [1, 2]}, b={"type": "boolean"})
    (space,) = engine.tokenize(" ")
    for request, flexible in enumerate((True, False)):
        asked = {"max_tokens": 5, "logit_bias": ((space, 100.0),)}
        session.ask(request, "Write JSON.", grammar=grammar(schema, flexible=flexible), **asked)
    session.finish(2)
    assert session.text[0].removeprefix("{").isspace()
    assert session.text[1].startswith('{"')


def test_a_constrained_answer_that_is_cut_ends_by_length(engine: LlamaEngine) -> None:
    session = Session(engine)
    schema = closed(text={"type": "string", "minLength": 400})
    session.ask(1, "Tell a story.", grammar=grammar(schema), max_tokens=12)
    session.finish(1)
    assert (session.ended[1].finish, session.ended[1].completion_tokens) == ("length", 12)
    with pytest.raises(json.JSONDecodeError):
        json.loads(session.text[1])


def test_a_grammar_may_be_lark(engine: LlamaEngine) -> None:
    session = Session(engine)
    session.ask(1, CAPITAL, grammar='start: "The answer is " /[A-Z][a-z]+/ "!"')
    session.finish(1)
    assert session.text[1] == "The answer is Paris!"
    assert session.ended[1].finish == "stop"


def test_a_schema_that_does_not_compile_is_refused(engine: LlamaEngine) -> None:
    with pytest.raises(EngineError) as caught:
        engine.constraint(LLMatcher.grammar_from_json_schema('{"not": {}}'))
    assert caught.value.code == "INVALID_REQUEST"
    assert "not" in caught.value.message


@pytest.mark.slow
def test_constrained_requests_that_start_over_still_parse() -> None:
    session = Session(LlamaEngine(options(demo_model(), context_tokens=128, kv_tokens=200), lambda _: None), cached=0)
    schema = {"type": "array", "items": {"enum": ["fox", "raven"]}, "minItems": 24, "maxItems": 24}
    for request in range(4):
        asked = f"List {request} animals."
        session.ask(request, asked, grammar=grammar(schema), max_tokens=None, temperature=1.0, seed=request)
    session.finish(4)
    assert session.counters.preempted > 0
    for request in range(4):
        assert satisfies(json.loads(session.text[request]), schema)


def test_cancelling_a_constrained_request_leaves_the_others(engine: LlamaEngine) -> None:
    session = Session(engine, cached=0)
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 8, "maxItems": 8}
    for request in (1, 2):
        session.ask(request, CAPITAL, grammar=grammar(schema), max_tokens=100)
    for _ in range(5):
        session.loop.turn()
    session.inbox.put(Cancel(1))
    session.finish(1)
    assert list(session.ended) == [2]
    assert satisfies(json.loads(session.text[2]), schema)
    assert session.counters.active_cells == 0


def test_control_tokens_show_where_asked_for_but_never_ends(engine: LlamaEngine) -> None:
    start, end = (engine.tokenize(text)[-1] for text in ("<|im_start|>", "<|im_end|>"))
    word = engine.tokenize("fox")[-1]
    assert [engine.piece(token, False) for token in (start, end, word)] == [b"", b"", b"fox"]
    assert [engine.piece(token, True) for token in (start, end, word)] == [b"<|im_start|>", b"", b"fox"]
    session = Session(engine)
    for request, special in enumerate((False, True)):
        session.ask(request, CAPITAL, logit_bias=((start, 100.0),), max_tokens=2, special=special, logprobs=0)
    session.finish(2)
    assert dict(session.text) == {0: "", 1: "<|im_start|><|im_start|>"}
    assert session.pieces[0][-1].logprobs == []
    assert [logprob.piece for piece in session.pieces[1] for logprob in piece.logprobs] == [b"<|im_start|>"] * 2


# --- logprobs


def logits_of(engine: LlamaEngine) -> np.ndarray:
    """Returns the only row that the last step computed, in double precision."""
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits(engine._context), (engine._n_vocab,)).astype(np.float64)


def sample(engine: LlamaEngine, params: SamplingParams, count: int, constraint: object = None) -> Sampled:
    prompt = engine.tokenize("The capital of France is")
    sampler = engine.sampler(params, prompt, constraint, count)
    engine.drop(0)
    ((sampled,),) = engine.step([TokenSpan(0, 0, prompt, sampler)])
    engine.drop(0)
    engine.free_sampler(sampler)
    return sampled


def test_logprobs_agree_with_the_definition(engine: LlamaEngine) -> None:
    sampled = sample(engine, SamplingParams(temperature=0), engine._n_vocab)
    logits = logits_of(engine)
    reference = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    order = np.argsort(-logits, kind="stable")
    assert sampled.token == order[0]
    assert sampled.logprob.logprob == pytest.approx(reference.max(), abs=1e-4)
    values = [logprob for _, logprob in sampled.logprob.top]
    assert values == sorted(values, reverse=True)
    assert values == pytest.approx(reference[order].tolist(), abs=1e-4)
    assert [piece for piece, _ in sampled.logprob.top[:50]] == [engine._text_of(int(at), True) for at in order[:50]]
    assert np.exp(values).sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_so_many_of_the_likeliest_are_reported(engine: LlamaEngine, count: int) -> None:
    whole = sample(engine, SamplingParams(temperature=0), 100).logprob
    assert sample(engine, SamplingParams(temperature=0), count).logprob.top == whole.top[:count]


def test_logprobs_are_the_models_own(engine: LlamaEngine) -> None:
    """Bias, temperature, truncation and grammar affect the choice but not the reported logprobs."""
    plain = sample(engine, SamplingParams(temperature=0), 20)
    paris = engine.tokenize(" Paris")[-1]
    biased = sample(engine, SamplingParams(temperature=0.2, top_k=3, logit_bias=((paris, -100.0),)), 20)
    digits = sample(engine, SamplingParams(temperature=0), 20, engine.constraint("start: /[0-9]+/"))
    assert (plain.token == paris, biased.token == paris) == (True, False)
    assert plain.logprob.top == biased.logprob.top == digits.logprob.top
    assert digits.logprob.piece.isdigit()
    assert digits.logprob.logprob < plain.logprob.top[-1][1]


def test_logprobs_of_a_stream_spell_its_text(engine: LlamaEngine) -> None:
    session = Session(engine)
    session.ask(1, "Repeat exactly: 🙂🎉🦊", max_tokens=30, logprobs=2, ignore_eos=True)
    session.ask(2, CAPITAL, logprobs=1)
    session.ask(3, CAPITAL, logprobs=0, stop=("capital of Spain", "France is"))
    session.ask(4, CAPITAL)
    session.finish(4)
    reported = {
        request: b"".join(logprob.piece for piece in session.pieces[request] for logprob in piece.logprobs)
        for request in (1, 2, 3)
    }
    assert reported[2].decode() == session.text[2] == session.text[4]
    assert session.text[3] == "The capital of "
    assert reported[3] == b"The capital of France", "the token that the stop string cuts shows its space"
    assert reported[1].startswith(session.text[1].encode())
    assert all(piece.logprobs is None for piece in session.pieces[4])
    for piece in session.pieces[2]:
        for logprob in piece.logprobs:
            assert logprob.top == [(logprob.piece, logprob.logprob)], "greedy: the token itself is the likeliest"
