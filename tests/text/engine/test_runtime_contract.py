"""Behaviour that all runtimes share, as the service sees it: real weights in a real worker."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator

import pytest

from services.text.engine.messages import TokenLogprob
from tests.case import case
from tests.demo_model import demo_model, demo_model_f32, demo_safetensors
from tests.late import late
from tests.remembered import remembered
from tests.text.engine.worker_session import WorkerSession
from tests.text.families.parity import Reference

torch = late("torch")
transformers = late("transformers")

CAPITAL = "What is the capital of France?"
STORY = "Tell me a story about a fox."
SCORED = " ".join(f"{number} times {number + 7} is {number * (number + 7)}, a café sells 🦊." for number in range(9))
LONG = "Here is a long text that two requests have in common. " * 12
FRANCE = 4649  # the token " France"
CONTEXT = 512
STEP = 256  # maximum tokens of a step
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("llama_cpp"),
        pytest.param("torch", marks=pytest.mark.slow),
        pytest.param("vllm", marks=pytest.mark.slow),
    ],
)
def worker(request: pytest.FixtureRequest) -> Iterator[WorkerSession]:
    """Yields a worker of each runtime in turn."""
    path = demo_model() if request.param == "llama_cpp" else demo_safetensors()
    sizes = {"context_tokens": CONTEXT, "batch_tokens": STEP, "chunk_tokens": 128}
    with WorkerSession(request.param, path, **sizes, speculation="ngram") as started:
        assert started.ready, started.failed
        yield started


def grammar(schema: dict) -> str:
    """Returns the grammar of a JSON schema as the service writes it."""
    return json.dumps({"grammars": [{"json_schema": schema}]})


def test_it_says_what_it_has_loaded(worker: WorkerSession) -> None:
    ready = worker.ready
    assert (ready.context_tokens, ready.max_sequences, ready.vocabulary) == (CONTEXT, 8, 49152)
    assert ready.kv_tokens >= 4096
    assert "<|im_start|>" in ready.chat_template


def test_the_answer_is_the_good_one_token_by_token(worker: WorkerSession) -> None:
    answer = worker.answer(CAPITAL)
    assert (answer.text, answer.finish, answer.tokens) == ("The capital of France is Paris.", "stop", 8)
    assert [piece.completion_tokens for piece in answer.pieces] == list(range(1, 9))
    assert answer.prompt_tokens > 8
    assert answer.phases == ["prefill", "decode"]
    counters = worker.idle()
    assert counters.active_cells == 0


def test_a_prompt_of_tokens_is_answered_as_its_text(worker: WorkerSession) -> None:
    text = worker.finish(worker.submit("The capital of France is", max_tokens=4))
    ids = [504, 3575, 282, 4649, 314]
    assert worker.finish(worker.submit(ids, max_tokens=4)).text == text.text


def test_a_prediction_never_changes_the_answer(worker: WorkerSession) -> None:
    plain = worker.answer(CAPITAL).text
    for prediction in (plain, plain[:12] + "Rome, Rome, Rome", "<|im_end|>", "word " * 10_000):
        answer = worker.answer(CAPITAL, prediction=prediction)
        assert (answer.text, answer.finish, answer.tokens) == (plain, "stop", 8)
        assert answer.pieces[-1].accepted_tokens <= 8


def test_requests_side_by_side_answer_like_alone(worker: WorkerSession) -> None:
    questions = [f"What is the capital of {country}?" for country in ("France", "Italy", "Spain", "Germany")]
    alone = [worker.answer(question, max_tokens=5).text for question in questions]
    together = [worker.ask(question, client=question, max_tokens=5) for question in questions]
    for number, text in zip(together, alone, strict=True):
        # Batches of different shapes round differently: only the first words must agree.
        assert worker.finish(number).text.split()[:4] == text.split()[:4]


def test_a_seed_repeats_and_another_does_not(worker: WorkerSession) -> None:
    asked = {"temperature": 1.0, "max_tokens": 8}
    first, second, other = (worker.answer(STORY, seed=seed, **asked).text for seed in (11, 11, 12))
    assert first == second
    assert first != other
    for number in [worker.ask(STORY, seed=seed, temperature=1.0, max_tokens=2) for seed in (0, 2**63, 2**64 - 1)]:
        assert worker.finish(number).finish == "length"


def test_a_seeded_prompt_of_several_steps_is_answered(worker: WorkerSession) -> None:
    """Steps before the last draw tokens that do not count."""
    answer = worker.answer(" word" * (STEP + 100) + STORY, temperature=1.0, seed=11, max_tokens=8, ignore_eos=True)
    assert (answer.tokens, answer.finish) == (8, "length")


def test_the_tail_can_be_cut(worker: WorkerSession) -> None:
    likeliest = worker.answer(CAPITAL).text
    cuts = ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6})
    asked = [worker.ask(CAPITAL, temperature=1.5, **cut) for cut in cuts]
    for number, cut in zip(asked, cuts, strict=True):
        assert worker.finish(number).text == likeliest, cut


def test_logit_bias_forbids_and_forces(worker: WorkerSession) -> None:
    paris = 7042
    without = worker.ask(CAPITAL, logit_bias=((paris, -100.0),), max_tokens=8)
    with_it = worker.ask(CAPITAL, logit_bias=((paris, 100.0),), max_tokens=3)
    assert " Paris" not in worker.finish(without).text  # "Paris" without the space is another token
    assert worker.finish(with_it).text == " Paris Paris Paris"


def test_penalties_stop_repetition_and_those_of_the_answer_ignore_the_prompt(worker: WorkerSession) -> None:
    echo = "Write the word apple again and again: apple apple apple apple apple apple apple apple apple"
    penalties = ({}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repeat_penalty": 1.8})
    asked = [worker.ask(echo, max_tokens=24, ignore_eos=True, **params) for params in penalties]
    plain, *others = (len(set(worker.finish(number).text.split())) for number in asked)
    assert all(words > plain for words in others), (plain, others)
    # No generated token precedes the first one: only a penalty over the prompt can change it.
    apples = "apple " * 30
    first = worker.answer(apples, max_tokens=1).text
    assert worker.answer(apples, presence_penalty=2.0, frequency_penalty=2.0, max_tokens=1).text == first


def test_stop_strings_never_leak(worker: WorkerSession) -> None:
    answer = worker.answer(CAPITAL, stop=("France is",))
    assert (answer.text, answer.finish) == ("The capital of ", "stop")
    assert worker.idle().active_cells == 0


def test_the_end_can_be_ignored(worker: WorkerSession) -> None:
    answer = worker.answer(CAPITAL, ignore_eos=True, max_tokens=12)  # without ignore_eos it ends after eight tokens
    assert (answer.tokens, answer.finish) == (12, "length")


def test_a_stop_token_ends_the_answer_and_is_no_part_of_it(worker: WorkerSession) -> None:
    for more in ({}, {"ignore_eos": True, "max_tokens": 12}):
        answer = worker.answer(CAPITAL, stop_token_ids=(FRANCE,), **more)
        assert (answer.text, answer.finish, answer.tokens) == ("The capital of", "stop", 4)
    refused = worker.answer(CAPITAL, stop_token_ids=(49152,)).refused
    assert refused
    assert (refused.code, refused.param) == ("INVALID_REQUEST", "stop_token_ids")


def test_nothing_ends_an_answer_before_its_least_number_of_tokens(worker: WorkerSession) -> None:
    answer = worker.answer(CAPITAL, min_tokens=12, max_tokens=12)
    assert (answer.tokens, answer.finish) == (12, "length")
    answer = worker.answer(CAPITAL, min_tokens=4, stop_token_ids=(FRANCE,), max_tokens=12)
    assert answer.tokens > 4
    assert not answer.text.startswith("The capital of France")
    answer = worker.answer(CAPITAL, min_tokens=3, stop=("capital", "Paris"))
    assert (answer.text, answer.finish) == ("The capital of France is ", "stop")


def test_characters_come_whole(worker: WorkerSession) -> None:
    answer = worker.answer("Repeat exactly: 🙂🎉🦊", max_tokens=24, ignore_eos=True)
    assert "�" not in answer.text


def test_prefixes_are_reused_by_the_same_client_alone(worker: WorkerSession) -> None:
    worker.answer(LONG + "What is it?", client="first", max_tokens=2)
    again = worker.answer(LONG + "How long is it?", client="first", max_tokens=2)
    assert 80 < again.cached < again.prompt_tokens
    assert worker.idle().cached_cells > 0
    assert worker.answer(LONG + "How long is it?", client="second", max_tokens=2).cached == 0
    assert worker.answer(LONG + "How long is it?", client="first", max_tokens=2, temperature=1.0, seed=1).cached == 0


def test_logprobs_are_the_models_own(worker: WorkerSession) -> None:
    plain = worker.answer(CAPITAL, logprobs=4)
    # The end token has no text, so `logprobs` omits it.
    assert b"".join(each.piece for each in plain.logprobs).decode() == plain.text
    for each in plain.logprobs:
        assert len(each.top) == 4
        assert each.top[0] == (each.piece, pytest.approx(each.logprob)), "greedy takes the likeliest"
        values = [value for _, value in each.top]
        assert values == sorted(values, reverse=True)
        assert sum(math.exp(value) for value in values) <= 1.001
    assert not worker.answer(CAPITAL, logprobs=0, max_tokens=1).logprobs[0].top
    assert worker.answer(CAPITAL, max_tokens=1).logprobs == []
    forced = worker.answer(CAPITAL, logprobs=1, logit_bias=((7042, 100.0),), max_tokens=1, temperature=0.5).logprobs[0]
    assert forced.piece == b" Paris"
    assert forced.logprob < -5, "what the bias did is not in it"
    assert forced.top[0][0] == plain.logprobs[0].piece


def reference(text: str) -> list[list[float]]:
    """Returns, per token of a text but its first, transformers' logprob of the token and of the likeliest one."""

    def compute() -> list[list[float]]:
        tokens = torch.tensor([transformers.AutoTokenizer.from_pretrained(demo_safetensors())(text).input_ids])
        with torch.inference_mode():
            logprobs = Reference(demo_safetensors()).model(tokens).logits[0, :-1].log_softmax(-1)
        found = logprobs.gather(1, tokens[0, 1:, None])[:, 0]
        return torch.stack([found, logprobs.amax(-1)], 1).tolist()

    return remembered(__file__, ("torch", "transformers"), [b"scored prompt", text.encode()], compute)


def assert_close(scored: list[TokenLogprob], most: float, mean: float) -> None:
    """Compares the logprobs of SCORED with transformers' in float32."""
    expected = reference(SCORED)
    gaps = [abs(each.logprob - token) for each, (token, _) in zip(scored[1:], expected, strict=True)]
    gaps += [abs(each.top[0][1] - best) for each, (_, best) in zip(scored[1:], expected, strict=True) if each.top]
    assert max(gaps) < most
    assert sum(gaps) / len(gaps) < mean


def test_a_prompt_is_scored_as_transformers_does(worker: WorkerSession) -> None:
    """In parts, beside other requests, and again from the start although its prefix is cached."""
    worker.finish(worker.submit(SCORED, max_tokens=1))
    running = worker.ask(STORY, max_tokens=60, ignore_eos=True)
    asked = [worker.submit(SCORED, logprobs=count, scored=True, max_tokens=1) for count in (2, 0)]
    first, second = (worker.finish(number) for number in asked)
    parts = [len(piece.prompt_logprobs) for piece in first.pieces if piece.prompt_logprobs]
    assert len(parts) > 2
    assert max(parts) <= 65, "a step has few rows of logits; the first part has the first token too"
    assert (first.cached, len(first.prompt_logprobs)) == (0, first.prompt_tokens)
    assert b"".join(each.piece for each in first.prompt_logprobs).decode() == SCORED
    assert [each.piece for each in second.prompt_logprobs] == [each.piece for each in first.prompt_logprobs]
    assert not any(each.top for each in second.prompt_logprobs)
    assert first.prompt_logprobs[0].logprob == 0
    for answer in (first, second):
        assert_close(answer.prompt_logprobs, most=0.4, mean=0.06)
    assert all(len(each.top) == 2 for each in first.prompt_logprobs[1:])
    assert len(first.logprobs) == 1
    assert worker.finish(running).tokens == 60


@pytest.mark.slow
@pytest.mark.parametrize(("runtime", "most", "mean"), [("llama_cpp", 0.1, 0.02), ("torch", 2e-3, 2e-4)])
def test_in_float32_the_scores_are_transformers(runtime: str, most: float, mean: float) -> None:
    """The weights of the GGUF file were not rounded to 16 bits, those of the safetensors were."""
    path = demo_model_f32() if runtime == "llama_cpp" else demo_safetensors()
    with WorkerSession(runtime, path, context_tokens=CONTEXT, batch_tokens=STEP, dtype="float32") as worker:
        assert_close(worker.finish(worker.submit(SCORED, logprobs=1, scored=True)).prompt_logprobs, most, mean)


def test_what_follows_a_scored_prompt_has_a_logprob_for_every_token(worker: WorkerSession) -> None:
    """Clients count tokens from the end: an end of turn counts, although it has no text."""
    answer = worker.answer(CAPITAL, logprobs=1, scored=True)
    assert (answer.text, answer.tokens) == ("The capital of France is Paris.", 8)
    assert [each.piece for each in answer.logprobs][-2:] == [b".", b"<|im_end|>"]
    assert len(answer.logprobs) == 8
    assert answer.prompt_logprobs[0].piece == b"<|im_start|>"
    single = worker.finish(worker.submit([FRANCE], logprobs=1, scored=True, max_tokens=1))
    assert [(each.piece, each.logprob) for each in single.prompt_logprobs] == [(b" France", 0.0)]


def test_an_answer_follows_its_grammar_and_ends_with_it(worker: WorkerSession) -> None:
    asked = ({}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "stop": ("{",), "ignore_eos": True})
    question = f"{CAPITAL} Answer in JSON."
    for number in [worker.ask(question, grammar=grammar(CITY), max_tokens=60, **params) for params in asked]:
        answer = worker.finish(number)
        assert answer.finish == "stop"
        assert set(json.loads(answer.text)) == {"city"}
    assert worker.idle().active_cells == 0


def test_grammars_side_by_side_with_others(worker: WorkerSession) -> None:
    free = worker.ask(STORY, max_tokens=20, ignore_eos=True)
    bound = [worker.ask(f"{number}? JSON.", grammar=grammar(CITY), max_tokens=60) for number in range(3)]
    for number in bound:
        json.loads(worker.finish(number).text)
    assert worker.finish(free).tokens == 20


def test_a_lark_grammar(worker: WorkerSession) -> None:
    answer = worker.answer(CAPITAL, grammar='start: "Lyon" | "Nice"')
    assert answer.text in ("Lyon", "Nice")
    assert answer.finish == "stop"


def test_unsupported_request_is_refused(worker: WorkerSession) -> None:
    for given, code, words in [
        ({"grammar": "start: ("}, "INVALID_REQUEST", "response_format"),
        ({"logit_bias": ((10**6, 1.0),)}, "INVALID_REQUEST", "49151"),
        ({"max_tokens": 2000}, "CONTEXT_LENGTH_EXCEEDED", str(CONTEXT)),
    ]:
        with case(given=given, code=code, words=words):
            refused = worker.answer(CAPITAL, **given).refused
            assert refused is not None
            assert refused.code == code
            assert words in refused.message
            assert worker.answer(CAPITAL, max_tokens=1).tokens == 1, "and the next one is answered"


def test_a_prompt_that_fills_the_context_takes_several_steps_and_ends_there(worker: WorkerSession) -> None:
    """The watchdog counts these steps as progress before the first token."""
    worker.idle()
    before = len(worker.steps)
    answer = worker.finish(worker.submit(" word" * (CONTEXT - 6), max_tokens=None, ignore_eos=True))
    assert answer.finish == "length"
    assert answer.prompt_tokens + answer.tokens == CONTEXT
    steps = [each for each in worker.steps[before:] if each.batch_tokens > 1]
    assert len({each.steps for each in steps}) >= 2
    assert max(each.batch_tokens for each in steps) <= STEP
    refused = worker.finish(worker.submit(" word" * (CONTEXT + 50))).refused
    assert refused is not None
    assert refused.code == "CONTEXT_LENGTH_EXCEEDED"


def test_a_cancelled_request_gives_everything_back_while_others_go_on(worker: WorkerSession) -> None:
    other = worker.ask(STORY, max_tokens=16, ignore_eos=True)
    gone = worker.ask(STORY, max_tokens=440, ignore_eos=True)
    worker.until(gone, 3)
    worker.cancel(gone)
    assert worker.finish(other).tokens == 16
    counters = worker.idle()
    assert counters.active_cells == 0
    assert worker.answers[gone].finish is None, "it stopped when it was cancelled"


def test_a_caller_who_waits_no_longer_gets_a_timeout(worker: WorkerSession) -> None:
    number = worker.ask(STORY, max_tokens=440, ignore_eos=True, deadline=time.monotonic() + 0.5)
    refused = worker.finish(number).refused
    assert refused is not None
    assert refused.code == "TIMEOUT"
    assert worker.idle().active_cells == 0


def test_nothing_is_computed_for_a_caller_who_does_not_read(worker: WorkerSession) -> None:
    whole = worker.answer(STORY, max_tokens=8, ignore_eos=True).text
    held = worker.ask(STORY, max_tokens=440, ignore_eos=True)
    worker.until(held, 5)
    worker.hold(held, True)
    worker.answer(CAPITAL, max_tokens=1)  # arrives after the loop has applied the hold
    tokens = worker.answers[held].tokens
    worker.answer(CAPITAL)
    assert worker.answers[held].tokens == tokens
    worker.hold(held, False)
    answer = worker.until(held, tokens + 5)
    assert answer.text.split()[:5] == whole.split()[:5]
    assert [piece.completion_tokens for piece in answer.pieces] == list(range(1, answer.tokens + 1)), "none is lost"
    assert answer.finish is None
    worker.cancel(held)
    worker.idle()


def test_a_held_request_can_be_cancelled(worker: WorkerSession) -> None:
    held = worker.ask(STORY, max_tokens=440, ignore_eos=True)
    worker.until(held, 2)
    worker.hold(held, True)
    worker.answer(CAPITAL, max_tokens=1)
    worker.cancel(held)
    assert worker.answer(CAPITAL, max_tokens=1).tokens == 1
    counters = worker.idle()
    assert (counters.running, counters.active_cells) == (0, 0)


def test_clients_take_turns(worker: WorkerSession) -> None:
    """One client holds eight slots and has eight more requests queued: the first free slot goes to the other client."""
    asked = {"max_tokens": 4, "ignore_eos": True}
    long = [worker.ask(STORY, client="many", max_tokens=440, ignore_eos=True) for _ in range(8)]
    worker.wait(lambda: all(worker.answers[each].pieces for each in long))
    many = [worker.ask(f"{STORY} {number}", client="many", **asked) for number in range(8)]
    one = worker.ask(STORY, client="one", **asked)
    worker.wait(lambda: all(worker.answers[each].prompt_tokens for each in (*many, one)))  # all are tokenized
    worker.cancel(long[0])
    worker.wait(lambda: any(worker.answers[each].phases for each in (*many, one)))
    assert worker.answers[one].phases
    assert not any(worker.answers[each].phases for each in many)
    for number in long[1:]:
        worker.cancel(number)
    assert {worker.finish(each).tokens for each in (*many, one)} == {4}
    assert max(each.running for each in worker.steps) == 8
    assert worker.idle().waiting == 0


def test_a_short_prompt_need_not_wait_for_a_long_one(worker: WorkerSession) -> None:
    """The long prompt takes several steps; the short one fits into the second, but not into the rest of the first."""
    # Both are tokenized while all slots are taken: else the long one could be computed before the short one is known.
    others = [worker.ask(STORY, max_tokens=440, ignore_eos=True) for _ in range(8)]
    worker.wait(lambda: all(worker.answers[each].pieces for each in others))
    long = worker.submit(" word" * 500, max_tokens=1, client="long")
    short = worker.ask(STORY * 4, max_tokens=2, client="short")
    worker.wait(lambda: all(worker.answers[each].prompt_tokens for each in (long, short)))
    with worker.stopped():
        for each in others:
            worker.cancel(each)
    worker.until(short, 1)
    assert not worker.answers[long].pieces
    assert worker.finish(long).finish == worker.finish(short).finish == "length"
