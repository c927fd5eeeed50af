"""Sampling on the device, compared with the plain definition of each parameter."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from services.text.engine.sampling import SamplingParams
from tests.late import late

sampling = late("services.text.engine.runtimes.torch.sampling")
torch = late("torch")

VOCABULARY = 1000
END = 7


def batch() -> sampling.BatchSampler:
    return sampling.BatchSampler(VOCABULARY, [END], torch.device("cpu"))


def request(prompt: tuple[int, ...] = (), logprobs: int | None = None, **params: object) -> sampling.Sampler:
    return sampling.new_sampler(SamplingParams(**params), prompt, None, logprobs)


def logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, VOCABULARY, generator=generator) * 3


def drawn(row: torch.Tensor, count: int = 400, **params: object) -> Counter[int]:
    """Counts the tokens drawn by many requests that differ only in their seed."""
    samplers = [request(seed=seed, **params) for seed in range(count)]
    return Counter(chosen.token for chosen in batch().sample(row.expand(count, -1), samplers))


def test_greedy_takes_the_likeliest() -> None:
    scores = logits(3)
    chosen = batch().sample(scores, [request(temperature=0)] * 3)
    assert [each.token for each in chosen] == scores.argmax(-1).tolist()


def test_samples_follow_the_distribution() -> None:
    row = torch.full((1, VOCABULARY), -math.inf)
    row[0, [3, 500, 999]] = torch.tensor([0.5, 0.3, 0.2]).log()
    found = drawn(row, 2000)
    assert set(found) == {3, 500, 999}
    assert [found[token] / 2000 for token in (3, 500, 999)] == pytest.approx([0.5, 0.3, 0.2], abs=0.05)


def test_temperature_sharpens_and_flattens() -> None:
    row = logits()
    best = int(row.argmax())
    shares = [drawn(row, temperature=temperature)[best] for temperature in (0.3, 1.0, 3.0)]
    assert shares[0] > shares[1] > shares[2]


@pytest.mark.parametrize("top_k", [1, 2, 700])
def test_top_k_keeps_so_many(top_k: int) -> None:
    row = logits()
    allowed = set(row[0].topk(top_k).indices.tolist())
    assert set(drawn(row, top_k=top_k, temperature=9.0)) <= allowed
    assert len(allowed) < 3 or len(set(drawn(row, top_k=top_k, temperature=9.0))) > 50


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.99])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float) -> None:
    row = logits()
    probabilities, tokens = row[0].softmax(-1).sort(descending=True)
    count = int((probabilities.cumsum(0) < top_p).sum()) + 1
    found = drawn(row, top_p=top_p)
    assert set(found) <= set(tokens[:count].tolist())
    assert found[int(tokens[0])]


def test_top_p_reaches_beyond_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    row = logits()
    usual = drawn(row, top_p=0.95)
    monkeypatch.setattr(sampling, "CANDIDATES", 4)
    assert drawn(row, top_p=0.95) == usual


def test_top_p_is_of_what_top_k_left() -> None:
    row = torch.full((1, VOCABULARY), -math.inf)
    row[0, :4] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Of the two tokens left, the first has 4/7, more than half: it alone reaches top_p.
    assert set(drawn(row, top_k=2, top_p=0.5)) == {0}
    assert set(drawn(row, top_p=0.5)) == {0, 1}


def test_min_p_is_a_share_of_the_likeliest() -> None:
    row = torch.full((1, VOCABULARY), -math.inf)
    row[0, :4] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    for more in ({}, {"top_k": 10}, {"top_p": 0.9999}):
        assert set(drawn(row, min_p=0.25, **more)) == {0, 1, 2}, more
    assert set(drawn(row, min_p=1.0)) == {0}


def test_seed_repeats_in_any_batch() -> None:
    def run(others: int) -> list[int]:
        sampler, found, mine = batch(), [], request(seed=5, temperature=1.3)
        rest = [request(top_k=5 * (number + 1), logprobs=3, presence_penalty=1.0) for number in range(others)]
        for step in range(20):
            scores = torch.cat([logits(others, seed=99 + step), logits(1, seed=step)])
            found.append(sampler.sample(scores, [*rest, mine])[-1].token)
        return found

    assert run(0) == run(1) == run(5)
    assert len(set(run(0))) > 5


def test_requests_without_a_seed_differ() -> None:
    flat = torch.zeros(40, VOCABULARY)
    assert len({each.token for each in batch().sample(flat, [request() for _ in range(40)])}) > 20


def test_logit_bias_adds_up() -> None:
    row = logits()
    best = int(row.argmax())
    (chosen,) = batch().sample(row, [request(temperature=0, logit_bias=((best, -100.0),))])
    assert chosen.token == int(row[0].topk(2).indices[1])
    (chosen,) = batch().sample(row, [request(temperature=0, logit_bias=((3, 60.0), (3, 60.0), (4, 100.0)))])
    assert chosen.token == 3


def test_penalties_count_generated_tokens() -> None:
    row = torch.zeros(1, VOCABULARY)
    row[0, :3] = torch.tensor([5.0, 4.0, 3.0])
    sampler = batch()
    frequent, present = request(temperature=0, frequency_penalty=0.6), request(temperature=0, presence_penalty=1.5)
    found = [[each.token for each in sampler.sample(row.expand(2, -1), [frequent, present])] for _ in range(6)]
    # Penalised logits: 5.0, 4.4, 3.8 against 4.0, 3.4 against 3.0. Each step takes the highest.
    assert [each[0] for each in found] == [0, 0, 1, 0, 1, 0]
    assert [each[1] for each in found] == [0, 1, 0, 0, 0, 0]


def test_the_repeat_penalty_counts_the_prompt_too() -> None:
    row = torch.full((1, VOCABULARY), -1.0)
    row[0, :2] = torch.tensor([5.0, 4.0])
    sampler, asked = batch(), request(prompt=(0, 0, 9), temperature=0, repeat_penalty=2.0)
    assert sampler.sample(row, [asked])[0].token == 1, "5 / 2 is less than 4"
    assert sampler.sample(row, [asked])[0].token == 0, "4 / 2 is less than 5 / 2"
    assert sampler.sample(row - 20, [asked])[0].token not in (0, 1), "what is below zero gets lower"


def test_the_presence_penalty_ignores_the_prompt() -> None:
    row = logits()
    best = int(row.argmax())
    asked = request(prompt=(best,) * 9, temperature=0, presence_penalty=2.0, frequency_penalty=2.0)
    assert batch().sample(row, [asked])[0].token == best


def test_freed_penalties_start_empty() -> None:
    row, sampler = logits(), batch()
    best = int(row.argmax())
    for _ in range(12):
        asked = [request(temperature=0, presence_penalty=2.0) for _ in range(5)]
        assert {each.token for each in sampler.sample(row.expand(5, -1), asked)} == {best}
        for each in asked:
            sampler.free(each)


def test_ignore_eos_forbids_the_ends() -> None:
    row = logits()
    row[0, END] = 50.0
    sampler = batch()
    assert sampler.sample(row, [request(temperature=0)])[0].token == END
    found = sampler.sample(row.expand(2, -1), [request(temperature=0, ignore_eos=True), request(ignore_eos=True)])
    assert END not in [each.token for each in found]


def test_masks_allow_only_their_tokens() -> None:
    allowed = [31, 32, 999]
    bits = torch.zeros(1, (VOCABULARY + 31) // 32, dtype=torch.int64)
    for token in allowed:
        bits[0, token // 32] |= 1 << (token % 32)
    mask = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32)
    free, bound = request(temperature=0), request(temperature=0)
    bound.constraint = object()  # type: ignore[assignment] # only its presence counts
    row = logits()
    found = batch().sample(row.expand(2, -1), [free, bound], mask)
    assert found[0].token == int(row.argmax())
    assert found[1].token == max(allowed, key=lambda token: float(row[0, token]))


def test_logprobs_are_of_the_model_itself() -> None:
    row = logits()
    expected = row[0].log_softmax(-1)
    best = int(row.argmax())
    params = {"temperature": 0.1, "logit_bias": ((best, -100.0),), "top_k": 3}
    asked = [request(logprobs=4, **params), request(logprobs=0)]
    reported, none = batch().sample(row.expand(2, -1), asked)
    assert reported.logprob == pytest.approx(float(expected[reported.token]), abs=1e-5)
    assert [token for token, _ in reported.top] == expected.topk(4).indices.tolist()
    assert [value for _, value in reported.top] == pytest.approx(expected.topk(4).values.tolist(), abs=1e-5)
    assert reported.top[0][0] == best
    assert none.top == []
    assert none.logprob == pytest.approx(float(expected[none.token]), abs=1e-5)
    assert batch().sample(row, [request(**params)])[0].top == []


def test_impossible_logprobs_are_finite() -> None:
    row = torch.full((1, VOCABULARY), -math.inf)
    row[0, 5] = 0.0
    (reported,) = batch().sample(row, [request(temperature=0, logprobs=2)])
    assert reported.top == [(5, 0.0), (reported.top[1][0], sampling.LOWEST_LOGPROB)]


def test_a_scored_prompt_takes_copies_of_few_rows_at_a_time() -> None:
    """The memory estimate reckons with the logits and an eighth of them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            made = result if isinstance(result, tuple | list) else [result]
            known = {each.data_ptr() for each in args if isinstance(each, torch.Tensor)}
            sizes.extend(each.nbytes for each in made if torch.is_tensor(each) and each.data_ptr() not in known)
            return result

    rows = logits(60).bfloat16()
    tokens = [(7 * at) % VOCABULARY for at in range(59)]  # the last row is for the next token
    with Sizes():
        found = batch().score(rows, tokens, 3)
    assert max(sizes) == sampling.SCORED_AT_ONCE * VOCABULARY * 4, "float32"
    expected = rows.float().log_softmax(-1)
    assert [each.token for each in found] == tokens
    assert [each.logprob for each in found] == pytest.approx(expected[range(59), tokens].tolist(), abs=1e-5)
    assert [[token for token, _ in each.top] for each in found] == expected[:59].topk(3).indices.tolist()
