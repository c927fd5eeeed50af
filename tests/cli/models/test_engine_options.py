"""Runtime and engine settings in `allm models add`, `update` and `show`."""

from __future__ import annotations

from allm.models.v1 import model_pb2

from tests.cli.models.catalog_stand_in import Commands, desired

ADD = ("add", "m", "hf://org/m", "--format", "safetensors", "--no-wait")
WHOLE = model_pb2.EngineSettings(
    tensor_parallel=2, pipeline_parallel=3, context_tokens=4096, max_sequences=8, kv_tokens=2**33, dtype="bfloat16"
)
OPTIONS = [
    word
    for field, value in WHOLE.ListFields()
    for word in (f"--{field.name.replace('_', '-')}", str(value))
]  # fmt: skip


def test_runtime_and_settings_reach_the_catalog(models: Commands) -> None:
    assert len(OPTIONS) == 2 * len(model_pb2.EngineSettings.DESCRIPTOR.fields), "none is left out"
    assert models(*ADD, "--runtime", "vllm", *OPTIONS).status == 0
    (request,) = models.catalog.requests("RegisterModel")
    assert (request.runtime, request.engine) == ("vllm", WHOLE)


def test_nothing_is_said_where_nothing_was(models: Commands) -> None:
    models.catalog.models["other"] = desired("other")
    assert models(*ADD).status == 0
    assert models("update", "other", "--no-wait").status == 0
    (new,), (change,) = models.catalog.requests("RegisterModel"), models.catalog.requests("UpdateModel")
    assert (new.runtime, new.HasField("engine")) == ("", False)
    assert (change.HasField("runtime"), change.HasField("engine")) == (False, False)


def test_an_update_may_give_both_back(models: Commands) -> None:
    models.catalog.models["m"] = desired("m")
    assert models("update", "m", "--runtime", "vllm", "--max-sequences", "4", "--no-wait").status == 0
    assert models("update", "m", "--runtime", "", "--max-sequences", "0", "--no-wait").status == 0
    given, back = models.catalog.requests("UpdateModel")
    assert (given.runtime, given.engine) == ("vllm", model_pb2.EngineSettings(max_sequences=4))
    assert (back.HasField("runtime"), back.runtime) == (True, "")
    assert (back.HasField("engine"), back.engine) == (True, model_pb2.EngineSettings())


def test_both_are_shown(models: Commands) -> None:
    shown = desired("m")
    models.catalog.models["m"] = shown
    assert "asked for" not in models("show", "m").stdout
    shown.model.asked_runtime = "vllm"
    shown.model.engine.CopyFrom(model_pb2.EngineSettings(tensor_parallel=2, dtype="float16"))
    text = models("show", "m").stdout
    assert "asked for" in text
    assert "tensor_parallel=2, dtype=float16" in text
