"""The model store: names, states, and the replicas that can serve a model instead."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from services.errors import ModelInvalid, ModelNotFound, ModelNotReady, Unsupported
from services.models.descriptor import ModelFacts, describe
from services.models.desired import DesiredModel
from services.models.manifest import Manifest, ManifestFile
from services.models.runtimes import RUNTIMES
from services.models.store import ModelStore, ServedGeneration, StoredModel

MANIFEST = Manifest(files=(ManifestFile(path="m.gguf", size=5),), primary="m.gguf", folder="/models")


def desired(model_id: str, *aliases: str, ready_on: tuple[str, ...] = ()) -> DesiredModel:
    facts = ModelFacts(
        id=model_id,
        modality="text",
        format="gguf",
        architecture="llama",
        capabilities=frozenset({"chat"}),
        size=5,
        context_tokens=2048,
    )
    return DesiredModel(
        facts=facts,
        aliases=aliases,
        source="file:///models/m.gguf",
        generation=3,
        manifest=MANIFEST,
        created=1,
        updated=1,
        ready_replicas=frozenset(ready_on),
    )


def ready(wanted: DesiredModel) -> StoredModel:
    descriptor = describe(wanted.facts, wanted.generation, wanted.manifest, Path("/models"))
    return StoredModel(
        desired=wanted, serving=ServedGeneration(descriptor=descriptor, runtime=RUNTIMES[0]), problem=None
    )


def broken(wanted: DesiredModel, problem: Exception) -> StoredModel:
    return StoredModel(desired=wanted, serving=None, problem=problem)


@pytest.fixture
def store() -> ModelStore:
    return ModelStore("me")


def test_a_model_is_found_by_id_and_alias(store: ModelStore) -> None:
    store.put(ready(desired("b", "gpt-4o", "gpt-4")))
    store.put(ready(desired("a", "o3")))
    assert [model.id for model in store] == ["a", "b"]
    for name, model_id in {"a": "a", "b": "b", "gpt-4o": "b", "gpt-4": "b", "o3": "a"}.items():
        assert name in store
        assert store.get(name).id == model_id
    with pytest.raises(ModelNotFound) as caught:
        store.get("c")
    assert caught.value.param == "model"


def test_aliases_follow_the_registration(store: ModelStore) -> None:
    store.put(ready(desired("a", "old")))
    store.put(ready(desired("a", "new")))
    assert store.get("new").id == "a"
    assert "old" not in store
    store.put(ready(desired("b", "new")))  # arrives before the update of the other model
    store.put(ready(desired("a")))
    assert store.get("new").id == "b"
    store.remove("b")
    store.remove("never-there")
    assert "new" not in store


def test_the_descriptor_names_the_files_where_they_are(store: ModelStore) -> None:
    store.put(ready(desired("a")))
    serving = store.serveable(store.get("a"))
    assert serving.descriptor.primary == Path("/models/m.gguf")
    assert serving.descriptor.files == (Path("/models/m.gguf"),)
    assert serving.descriptor.generation == 3
    whole_folder = dataclasses.replace(MANIFEST, primary="")
    assert describe(desired("a").facts, 1, whole_folder, Path("/x")).primary == Path("/x")


@pytest.mark.parametrize("problem", [ModelInvalid("cut off"), Unsupported("needs a GPU"), ModelNotReady("12 %")])
def test_unservable_model_gives_the_reason_each_time(store: ModelStore, problem: Exception) -> None:
    store.put(broken(desired("a"), problem))
    for _ in range(2):
        with pytest.raises(type(problem), match=str(problem)) as caught:
            store.serveable(store.get("a"))
        assert caught.value is not problem, "raised again and again, it would keep what was on the stack each time"


@pytest.mark.parametrize("problem", [ModelInvalid("cut off"), Unsupported("needs a GPU"), ModelNotReady("12 %")])
def test_image_of_another_replica_is_fetched_there(store: ModelStore, problem: Exception) -> None:
    store.put(broken(desired("a", ready_on=("me", "other")), problem))
    with pytest.raises(ModelNotReady, match=str(problem)):  # UNAVAILABLE: the gateway tries the others
        store.serveable(store.get("a"))


def test_oneself_is_no_other_replica(store: ModelStore) -> None:
    store.put(broken(desired("a", ready_on=("me",)), ModelInvalid("cut off")))
    with pytest.raises(ModelInvalid):
        store.serveable(store.get("a"))


async def test_an_unknown_name_is_asked_for_once_before_it_is_denied(store: ModelStore) -> None:
    asked = []

    async def ask(name: str) -> None:
        asked.append(name)
        if name == "new":
            store.put(ready(desired("new")))

    store.ask = ask
    assert (await store.find("new")).id == "new"
    assert (await store.find("new")).id == "new"
    with pytest.raises(ModelNotFound):
        await store.find("nothing")
    assert asked == ["new", "nothing"]


async def test_without_a_catalog_an_unknown_name_is_denied_at_once(store: ModelStore) -> None:
    with pytest.raises(ModelNotFound):
        await store.find("nothing")


def test_an_alias_on_its_way_to_another_model_is_not_lost(store: ModelStore) -> None:
    store.put(ready(desired("a", "x")))
    store.put(ready(desired("b", "x")))  # the new owner's update arrives first
    store.put(ready(desired("a", "x")))  # a progress update of the old owner
    assert store.get("x").id == "b"
    store.put(ready(desired("a")))
    assert store.get("x").id == "b"
    store.put(ready(desired("a", "x")))
    assert store.get("x").id == "a"
    store.remove("a")
    assert store.get("x").id == "b"
    store.remove("b")
    assert "x" not in store
