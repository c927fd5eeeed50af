"""Safetensors on a running stack: registered over REST, served by the torch runtime, refused with a named cause."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.demo_model import demo_safetensors
from tests.operator_side import QUESTION, Operator
from tests.pictures.picture_files import file, halves
from tests.registration.model_folders import safetensors_model, write_json
from tests.text.families.published_vision_configs import CLIP_PIXELS, LLAVA
from tests.text.families.published_words import MESSAGE, spellings, write_gpt_oss
from tests.text.families.random_models import shard, write_variant
from tests.text.families.vision_checks import write_seeing

PARIS = "The capital of France is Paris."
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
FORCED = {"type": "function", "function": {"name": "get_weather"}}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": SCHEMA}}
ASKED: Any = [{"role": "user", "content": QUESTION}]


def registered(operator: Operator, model_id: str, folder: Path, **engine: str) -> Iterator[str]:
    """Registers a model, and deletes it after the tests of this module."""
    operator.taken(model_id, folder, "safetensors", engine=engine)
    shown = operator.until_state(model_id, "ready")
    assert (shown["format"], shown["runtime"]) == ("safetensors", "torch")
    yield model_id
    operator.delete(model_id)


@pytest.fixture(scope="module")
def smollm2(shared_operator: Operator) -> Iterator[str]:
    folder = shared_operator.root / "smollm2-st"
    shutil.copytree(demo_safetensors(), folder, copy_function=_link)
    yield from registered(shared_operator, "smollm2-st", folder)


@pytest.fixture(scope="module")
def gpt_oss_folder(shared_operator: Operator) -> Path:
    return write_gpt_oss(shared_operator.root / "gpt-oss", packed=True)


@pytest.fixture(scope="module")
def gpt_oss(shared_operator: Operator, gpt_oss_folder: Path) -> Iterator[str]:
    # Random weights make near-ties: in 16 bits an answer would depend on how its prompt was divided into steps.
    yield from registered(shared_operator, "gpt-oss", gpt_oss_folder, dtype="float32")


@pytest.fixture(scope="module")
def client(shared_operator: Operator) -> openai.OpenAI:
    return openai.OpenAI(base_url=shared_operator.stack.base_url, api_key="unused", max_retries=0, timeout=90)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


# --- real weights


def test_smollm2_answers_chats(client: openai.OpenAI, smollm2: str) -> None:
    asked: Any = {"model": smollm2, "messages": ASKED, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**asked)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (PARIS, "stop")
    assert whole.usage is not None
    assert whole.usage.completion_tokens < 24
    parts = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == PARIS
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.slow
def test_smollm2_answers_responses(client: openai.OpenAI, smollm2: str) -> None:
    asked: Any = {"model": smollm2, "input": QUESTION, "temperature": 0, "max_output_tokens": 24, "store": False}
    whole = client.responses.create(**asked)
    assert (whole.output_text, whole.status) == (PARIS, "completed")
    events = list(client.responses.create(**asked, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == PARIS
    assert events[-1].type == "response.completed"


@pytest.mark.slow
def test_smollm2_follows_schemas_and_calls_tools(client: openai.OpenAI, smollm2: str) -> None:
    asked: Any = {"model": smollm2, "messages": ASKED, "temperature": 0, "max_tokens": 64}
    reported = client.chat.completions.create(**asked, response_format=FORMAT).choices[0]
    assert reported.finish_reason == "stop"
    assert json.loads(reported.message.content or "")["answer"] in ("yes", "no")
    called = client.chat.completions.create(**asked, tools=[TOOL], tool_choice=FORCED).choices[0]
    assert called.finish_reason == "tool_calls"
    (call,) = called.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city", "days"}


@pytest.mark.slow
def test_smollm2_returns_logprobs_and_repeats_seeds(client: openai.OpenAI, smollm2: str) -> None:
    asked: Any = {"model": smollm2, "messages": ASKED, "max_tokens": 8, "logprobs": True, "top_logprobs": 3}
    first = client.chat.completions.create(**asked, seed=5, n=2, temperature=1.0)
    again = client.chat.completions.create(**asked, seed=5, n=2, temperature=1.0)
    texts = [choice.message.content for choice in first.choices]
    assert len(texts) == 2
    assert texts[0] != texts[1], "each choice has a seed of its own"
    assert texts[0] == again.choices[0].message.content
    content = first.choices[0].logprobs and first.choices[0].logprobs.content
    assert content
    for token in content:
        values = [each.logprob for each in token.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert values[0] >= token.logprob - 1e-6


# --- gpt-oss with random weights: the content is meaningless, the format must be right


def biased(folder: Path, *words: str, marks: tuple[int, ...] = ()) -> dict[str, int]:
    """Returns a logit bias against these words and marks, for steps where the grammar allows a choice."""
    found = {str(mark): -100 for mark in marks}
    for word in words:
        found |= spellings(folder, word)
    return found


@pytest.mark.slow
def test_gpt_oss_chats(client: openai.OpenAI, gpt_oss: str) -> None:
    asked: Any = {"model": gpt_oss, "messages": ASKED, "max_tokens": 24, "temperature": 0, "reasoning_effort": "low"}
    whole = client.chat.completions.create(**asked)
    (choice,) = whole.choices
    assert choice.finish_reason in ("stop", "length", "tool_calls")
    assert whole.usage is not None
    assert 1 <= whole.usage.completion_tokens <= 24
    parts = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    deltas = [part.choices[0] for part in parts if part.choices]
    assert deltas[0].delta.role == "assistant"
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [choice.finish_reason]
    assert "".join(delta.delta.content or "" for delta in deltas) == (choice.message.content or "")
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.slow
def test_gpt_oss_reasons_by_effort(operator: Operator, gpt_oss: str) -> None:
    prompts = {}
    for effort in ("low", "high", "minimal"):
        reply = operator.chat(gpt_oss, reasoning_effort=effort, max_tokens=1)
        assert reply.status == 200, reply
        prompts[effort] = reply.json["usage"]["prompt_tokens"]
    assert len(set(prompts.values())) == 1, "one word of the prompt"
    refused = operator.chat(gpt_oss, reasoning_effort="none")
    assert refused.error["param"] == "reasoning_effort", refused
    assert "always reasons" in refused.error["message"]


@pytest.mark.slow
def test_gpt_oss_answers_in_its_final_channel(client: openai.OpenAI, gpt_oss: str, gpt_oss_folder: Path) -> None:
    asked: Any = {"model": gpt_oss, "messages": ASKED, "max_tokens": 64, "response_format": FORMAT}
    asked["logit_bias"] = biased(gpt_oss_folder, "analysis")
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.finish_reason == "stop"
    assert json.loads(choice.message.content or "")["answer"] in ("yes", "no")
    parts = [part.choices[0].delta for part in client.chat.completions.create(**asked, stream=True)]
    assert json.loads("".join(part.content or "" for part in parts))["answer"] in ("yes", "no")


@pytest.mark.slow
def test_gpt_oss_thinks_apart(client: openai.OpenAI, gpt_oss: str, gpt_oss_folder: Path) -> None:
    asked: Any = {"model": gpt_oss, "messages": ASKED, "max_tokens": 16, "response_format": FORMAT}
    asked["logit_bias"] = biased(gpt_oss_folder, "final")
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.reasoning_content  # type: ignore[attr-defined]
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    assert (whole.usage.completion_tokens_details.reasoning_tokens or 0) > 0


@pytest.mark.slow
def test_gpt_oss_calls_the_tool_that_is_asked_for(client: openai.OpenAI, gpt_oss: str, gpt_oss_folder: Path) -> None:
    asked: Any = {"model": gpt_oss, "messages": ASKED, "max_tokens": 64, "tools": [TOOL], "tool_choice": FORCED}
    asked["logit_bias"] = biased(gpt_oss_folder, "analysis", marks=(MESSAGE,))
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert set(json.loads(call.function.arguments)) == {"city", "days"}
    history: Any = [
        *ASKED,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    following = client.chat.completions.create(model=gpt_oss, messages=history, tools=[TOOL], max_tokens=4)
    assert following.usage is not None
    assert following.usage.prompt_tokens > 100
    parts = [part.choices[0] for part in client.chat.completions.create(**asked, stream=True)]
    calls = [each for part in parts for each in part.delta.tool_calls or ()]
    assert [each.function.name for each in calls if each.function and each.function.name] == ["get_weather"]
    assert set(json.loads("".join(each.function.arguments or "" for each in calls if each.function))) == {
        "city",
        "days",
    }
    assert parts[-1].finish_reason == "tool_calls"


@pytest.mark.slow
def test_gpt_oss_responds_in_events(client: openai.OpenAI, gpt_oss: str) -> None:
    asked: Any = {"model": gpt_oss, "input": QUESTION, "max_output_tokens": 16, "store": False}
    events = list(client.responses.create(**asked, stream=True, reasoning={"effort": "high"}))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.usage is not None
    assert events[-1].response.usage.output_tokens <= 16


# --- unsupported models, and the reasons


def sparse(folder: Path, gib: float, dtype: str = "BF16", name: str = "model.w.weight", **config: Any) -> Path:
    """Writes a model with one tensor of `gib` GiB as a sparse file, which takes no disk space."""
    safetensors_model(folder, "gpt_oss")
    write_json(folder / "config.json", {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], **config})
    size = int(gib * 2**30)
    numbers = size // {"BF16": 2, "U8": 1}[dtype]
    header = json.dumps({name: {"dtype": dtype, "shape": [numbers], "data_offsets": [0, size]}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return folder


def unsupported(operator: Operator, folder: Path) -> str:
    """Registers a model that is accepted but cannot run; returns the reason."""
    operator.taken("m", folder, "safetensors")
    reason: str = operator.until_state("m", "unsupported")["reason"]
    # The service, which first prepares the model, confirms the prediction of the catalog.
    operator.until(lambda: [replica["state"] for replica in operator.all()["m"]["replicas"]] == ["unsupported"])
    reply = operator.chat("m")
    assert (reply.status, reply.error["code"]) == (501, "unsupported")
    assert reason in reply.error["message"] or reply.error["message"] in reason
    return reason


@pytest.mark.slow
def test_missing_metadata_and_shards_are_named(operator: Operator, folder: Path, gpt_oss_folder: Path) -> None:
    first, second = shard(folder / "sharded", gpt_oss_folder)
    for name in ("config.json", "tokenizer.json", first, second):
        path = folder / "sharded" / name
        path.rename(folder / name)
        assert name in operator.refused("m", folder / "sharded", "safetensors")
        (folder / name).rename(path)
    index = folder / "sharded" / "model.safetensors.index.json"
    index.rename(folder / index.name)
    assert first in operator.refused("m", folder / "sharded", "safetensors")


@pytest.mark.slow
def test_swapped_shards_are_named(operator: Operator, folder: Path, gpt_oss_folder: Path) -> None:
    first, second = shard(folder / "sharded", gpt_oss_folder)
    (folder / "sharded" / first).rename(folder / "sharded" / "x")
    (folder / "sharded" / second).rename(folder / "sharded" / first)
    (folder / "sharded" / "x").rename(folder / "sharded" / second)
    message = operator.refused("m", folder / "sharded", "safetensors")
    assert "model.safetensors.index.json" in message
    assert first in message or second in message


@pytest.mark.slow
def test_a_sharded_model_answers_as_the_whole_one(
    operator: Operator, folder: Path, gpt_oss_folder: Path, gpt_oss: str
) -> None:
    shard(folder / "sharded", gpt_oss_folder)
    operator.taken("m", folder / "sharded", "safetensors", engine={"dtype": "float32"})  # as gpt_oss
    operator.until_state("m", "ready")
    asked = {"logprobs": True, "max_tokens": 4}
    ours, theirs = (operator.chat(model, **asked).json["choices"][0] for model in ("m", gpt_oss))
    assert ours["message"] == theirs["message"]
    # Sums are rounded differently if the speed of the machine has changed the steps of the prompt.
    ours, theirs = ([token["logprob"] for token in each["logprobs"]["content"]] for each in (ours, theirs))
    assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.slow
def test_an_unfit_machine_is_named_with_both_numbers(operator: Operator, folder: Path) -> None:
    reason = unsupported(operator, sparse(folder / "large", 4.5))
    assert "needs a GPU" in reason
    assert "4.5 GiB" in reason
    assert "4 GiB are accepted" in reason


@pytest.mark.slow
def test_packed_weights_count_as_what_they_become(operator: Operator, folder: Path) -> None:
    quantised = {"quantization_config": {"quant_method": "mxfp4"}}
    reason = unsupported(operator, sparse(folder / "packed", 1.5, "U8", "experts.down_proj_blocks", **quantised))
    assert "6.0 GiB dequantised from 1.5 GiB in mxfp4" in reason


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fp8", "awq", "gptq", "bitsandbytes"])
def test_weights_quantised_otherwise_are_unsupported_by_method(operator: Operator, folder: Path, method: str) -> None:
    path = safetensors_model(folder, "qwen3")
    config = json.loads((path / "config.json").read_text()) | {"quantization_config": {"quant_method": method}}
    write_json(path / "config.json", config)
    assert f"weights of qwen3 quantised with '{method}' are not supported by torch" in unsupported(operator, path)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["gemma3n", "mamba", "t5"])
def test_other_architectures_are_unsupported_by_name(operator: Operator, folder: Path, model_type: str) -> None:
    reason = unsupported(operator, safetensors_model(folder, model_type))
    assert f"architecture {model_type!r} is not supported by torch" in reason


@pytest.mark.slow
def test_models_that_see_answer_about_pictures_or_are_unsupported_by_name(operator: Operator, folder: Path) -> None:
    strange = write_seeing(folder / "strange", LLAVA, CLIP_PIXELS, ["<image>"])
    write_json(strange / "config.json", LLAVA | {"model_type": "vipllava"})
    assert "architecture 'vipllava' is not supported by torch for chat, vision" in unsupported(operator, strange)
    operator.delete("m")
    taken = operator.taken("m", write_seeing(folder / "llava", LLAVA, CLIP_PIXELS, ["<image>"]), "safetensors")
    assert taken["capabilities"] == ["chat", "vision"]
    operator.until_state("m", "ready")
    address = f"data:image/png;base64,{base64.b64encode(file(halves())).decode()}"
    text = {"type": "text", "text": "Which colour? "}
    seen = {
        "type": "image_url",
        "image_url": {"url": address},
    }
    blind, seeing = (
        operator.call(
            "POST",
            "/v1/chat/completions",
            {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": content}]},
        ).json["usage"]["prompt_tokens"]
        for content in ([text], [text, seen])
    )
    assert seeing == blind + 16


@pytest.mark.slow
def test_code_of_a_models_own_is_refused_by_name(operator: Operator, folder: Path) -> None:
    path = safetensors_model(folder, "llama")
    config = json.loads((path / "config.json").read_text())
    write_json(path / "config.json", config | {"auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}})
    message = operator.refused("m", path, "safetensors")
    assert "auto_map" in message
    assert "modeling_x.XForCausalLM" in message


@pytest.mark.slow
def test_weights_that_lack_a_tensor_fail_by_its_name(operator: Operator, folder: Path, gpt_oss_folder: Path) -> None:
    plain = gpt_oss_folder.parent / f"{gpt_oss_folder.name}-plain"
    config = json.loads((plain / "config.json").read_text())
    write_variant(folder / "lacking", plain, config, without=("layers.1.self_attn.sinks",))
    operator.taken("m", folder / "lacking", "safetensors")
    operator.until_state("m", "ready")
    reply = operator.chat("m")
    assert reply.error["code"] == "model_invalid", reply
    assert "layers.1.self_attn.sinks" in reply.error["message"]
