"""The store: lookup by id and alias, and models that stay in the list with the reason why they cannot be served."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from services.models.registry import RUNTIMES, EngineRegistry
from services.models.store import ModelStore, StoredModel, load_store
from services.rpc.errors import ModelInvalid, ModelNotFound, Unsupported
from tests.models.gguf_file import llama

REGISTRY = EngineRegistry("cpu", forced=False)


def test_models_are_found_by_id_and_by_alias(tmp_path: Path) -> None:
    one, two = llama(tmp_path / "1.gguf"), llama(tmp_path / "2.gguf", "qwen3")
    store = load_store([("b", one), ("a", two)], [("gpt-4o", "b"), ("gpt-4", "b"), ("o3", "a")], REGISTRY)
    assert [model.id for model in store] == ["a", "b"]
    assert store.get("gpt-4o") is store.get("gpt-4") is store.get("b")
    assert store.get("b").aliases == ("gpt-4o", "gpt-4")
    assert store.get("o3").descriptor.architecture == "qwen3"
    descriptor, runtime = store.serveable("gpt-4o")
    assert (descriptor.id, descriptor.primary, runtime) == ("b", one, RUNTIMES[0])
    assert store.get("a").created == int(two.stat().st_mtime)


@pytest.mark.parametrize("name", ["", "none", "A", "gpt-4o "])
def test_an_unknown_name_is_told_as_openai_does(tmp_path: Path, name: str) -> None:
    store = load_store([("a", llama(tmp_path / "1.gguf"))], [("gpt-4o", "a")], REGISTRY)
    for look in (store.get, store.serveable):
        with pytest.raises(ModelNotFound) as caught:
            look(name)
        assert caught.value.message == f"The model `{name}` does not exist."
        assert caught.value.param == "model"


def test_a_model_that_cannot_be_served_is_kept_with_the_reason(tmp_path: Path) -> None:
    missing, odd, good = tmp_path / "none.gguf", llama(tmp_path / "odd.gguf", "bert"), llama(tmp_path / "good.gguf")
    before = int(time.time())
    store = load_store([("missing", missing), ("odd", odd), ("good", good)], [], REGISTRY)
    assert isinstance(store.get("missing").problem, ModelInvalid)
    assert store.get("missing").descriptor is None
    assert store.get("missing").created >= before
    assert isinstance(store.get("odd").problem, Unsupported)
    assert store.get("odd").descriptor.architecture == "bert"
    assert store.get("good").problem is None
    with pytest.raises(ModelInvalid, match=str(missing)):
        store.serveable("missing")
    with pytest.raises(Unsupported, match="bert"):
        store.serveable("odd")
    assert store.serveable("good")


def test_a_path_that_no_file_can_have_spoils_only_its_model(tmp_path: Path) -> None:
    store = load_store([("long", Path("/" + "x" * 5000)), ("a", llama(tmp_path / "1.gguf"))], [], REGISTRY)
    assert isinstance(store.get("long").problem, ModelInvalid)
    assert store.serveable("a")


def test_a_refusal_that_is_told_often_keeps_nothing_of_those_it_was_told_to(tmp_path: Path) -> None:
    """An exception object that is raised again grows its traceback, and with it keeps every caller's frames alive."""
    store = load_store([("missing", tmp_path / "none.gguf")], [], REGISTRY)

    def told() -> tuple[int, ModelInvalid]:
        with pytest.raises(ModelInvalid) as caught:
            store.serveable("missing")
        return len(caught.traceback), caught.value

    first, error = told()
    for _ in range(10):
        told()
    again, same = told()
    assert again == first
    assert (same.message, same.http_status, same.headers()) == (error.message, error.http_status, error.headers())
    problem = store.get("missing").problem
    depth, at = 0, problem.__traceback__
    while at:
        depth, at = depth + 1, at.tb_next
    assert depth <= 3  # of when the model was described


def test_a_model_without_runtime_and_reason_is_still_refused() -> None:
    plain = StoredModel(id="a", aliases=(), created=0, descriptor=None, runtime=None, problem=None)
    with pytest.raises(Unsupported, match="a cannot be served"):
        ModelStore([plain]).serveable("a")


@pytest.mark.parametrize(
    ("models", "aliases", "words"),
    [
        (["a", "a"], [], "ALLM_MODELS names a twice"),
        (["a"], [("x", "b")], "ALLM_ALIASES: x stands for b, which is not a model"),
        (["a"], [("x", "a"), ("x", "a")], "ALLM_ALIASES: x is taken already"),
        (["a", "b"], [("a", "b")], "ALLM_ALIASES: a is taken already"),
        (["a"], [("x", "a"), ("y", "x")], "ALLM_ALIASES: y stands for x, which is not a model"),
    ],
)
def test_a_list_that_contradicts_itself_is_refused(
    tmp_path: Path, models: list[str], aliases: list[tuple[str, str]], words: str
) -> None:
    path = llama(tmp_path / "1.gguf")
    with pytest.raises(ModelInvalid) as caught:
        load_store([(model, path) for model in models], aliases, REGISTRY)
    assert caught.value.message == words
