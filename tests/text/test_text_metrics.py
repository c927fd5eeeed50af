"""Metrics of answers, with a scripted worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY

from services.settings.settings import load_settings
from services.telemetry import metrics
from services.text.engine.messages import Accepted, Counters, DecoderReady, Piece, Stepped, Submit
from services.text.engine.sampling import SamplingParams
from services.text.loaded import LoadedTextModel
from services.text.template_process import TemplateProcess
from services.worker.messages import Phase
from tests.puppet_worker import PuppetWorker

MODEL = "measured"
PATIENCE_SECONDS = 60.0
PROMPT_TOKENS = 7
GEN_AI = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "allm", "gen_ai_request_model": MODEL}


def puppet() -> PuppetWorker:
    """Returns a worker that accepts every request and does nothing else."""
    return PuppetWorker(lambda sent: Accepted(sent.request, PROMPT_TOKENS) if isinstance(sent, Submit) else None)


@asynccontextmanager
async def served(worker: Any) -> AsyncIterator[LoadedTextModel]:
    plain = {"vocabulary": 64, "chat_template": "", "bos": "", "eos": "", "add_bos": False}
    ready = DecoderReady(context_tokens=64, kv_tokens=128, max_sequences=4, **plain)  # type: ignore[arg-type]
    model = LoadedTextModel(MODEL, "llama", worker, ready, load_settings({}).text, TemplateProcess(MODEL, 1))
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            yield model
        finally:
            await model.close()


@pytest.fixture(autouse=True)
def chatting() -> Iterator[None]:
    token = metrics.operation.set("chat")
    yield
    metrics.operation.reset(token)


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, {"model": MODEL, **labels}) or 0.0


def step(number: int, piece: Piece, *phases: Phase, **counters: int) -> Stepped:
    plain = {"running": 1, "waiting": 0, "active_cells": 8, "cached_cells": 16, "preempted": 0}
    return Stepped([piece], Counters(number, **{**plain, "batch": 1, "batch_tokens": 1, **counters}), list(phases))


COUNTED = {
    "prompt": ("allm_prompt_tokens_total", {}),
    "cached": ("allm_cached_tokens_total", {}),
    "generated": ("allm_generated_tokens_total", {}),
    "steps": ("allm_engine_steps_total", {}),
    "preempted": ("allm_requests_preempted_total", {}),
    "drafted": ("allm_draft_tokens_total", {}),
    "accepted": ("allm_accepted_draft_tokens_total", {}),
    "first": ("gen_ai_server_time_to_first_token_seconds_count", GEN_AI),
    "between": ("gen_ai_server_time_per_output_token_seconds_count", GEN_AI),
    "input": ("gen_ai_client_token_usage_sum", {**GEN_AI, "gen_ai_token_type": "input"}),
    "output": ("gen_ai_client_token_usage_sum", {**GEN_AI, "gen_ai_token_type": "output"}),
    "batches": ("allm_batch_sequences_count", {}),
    "sequences": ("allm_batch_sequences_sum", {}),
    "tokens": ("allm_batch_tokens_sum", {}),
}


def counts() -> dict[str, float]:
    return {key: value(name, **labels) for key, (name, labels) in COUNTED.items()}


def gained(before: dict[str, float]) -> dict[str, float]:
    """Returns the counters that have grown, each with its increase."""
    return {key: count - before[key] for key, count in counts().items() if count != before[key]}


async def test_an_answer_that_ends_well() -> None:
    before, worker = counts(), puppet()
    async with served(worker) as model:
        assert value("allm_kv_cells_capacity") == 128
        async with model.generate("me", "Hello.", SamplingParams()) as answer:
            await answer.accepted()
            worker.say(step(1, Piece(1, "a", None, 1, 4), batch_tokens=3), step(2, Piece(1, "b", None, 2, 4)))
            worker.say(
                step(5, Piece(1, "c", "stop", 4, 4), batch=2, batch_tokens=2, preempted=1, drafted=5, accepted=2)
            )
            while not answer.finished:
                await answer.ready()
        assert (value("allm_kv_cells_active"), value("allm_kv_cells_cached")) == (8, 16)
    assert gained(before) == {
        "prompt": PROMPT_TOKENS,
        "cached": 4,
        "generated": 4,
        "steps": 5,
        "preempted": 1,
        "drafted": 5,
        "accepted": 2,
        "first": 1,
        "between": 1,
        "input": PROMPT_TOKENS,
        "output": 4,
        "batches": 3,
        "sequences": 4,
        "tokens": 6,
    }
    assert (value("allm_kv_cells_capacity"), value("allm_kv_cells_cached")) == (0, 0), "the worker is gone"


async def test_an_abandoned_answer_counts_its_tokens_but_no_length() -> None:
    before, worker = counts(), puppet()
    async with served(worker) as model, model.generate("me", "Hello.", SamplingParams()) as answer:
        worker.say(step(1, Piece(1, "a", None, 1, 0)), step(2, Piece(1, "b", None, 2, 0)))
        while answer.tokens < 2:
            await answer.ready()
    grown = gained(before)
    assert grown["generated"] == 2
    assert grown["prompt"] == PROMPT_TOKENS
    assert not grown.keys() & {"input", "output", "between"}


async def test_a_heartbeat_without_a_step_is_no_step() -> None:
    before, worker = counts(), puppet()
    async with served(worker) as model, model.generate("me", "Hello.", SamplingParams()) as answer:
        worker.say(step(1, Piece(1, "a", None, 1, 0)), step(1, Piece(1, "b", "stop", 2, 0)))
        while not answer.finished:
            await answer.ready()
    assert gained(before)["steps"] == gained(before)["batches"] == 1


async def test_one_token_has_nothing_between() -> None:
    before, worker = counts(), puppet()
    async with served(worker) as model, model.generate("me", "Hello.", SamplingParams()) as answer:
        worker.say(step(1, Piece(1, "a", "stop", 1, 0)))
        await answer.ready()
    assert "between" not in gained(before)
    assert gained(before)["first"] == 1
