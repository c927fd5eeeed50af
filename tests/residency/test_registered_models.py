"""Model lookup by name: a key with a model list gets no other model, by any name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.auth.caller import Caller, keep_caller
from services.auth.identity import INFERENCE, Identity
from services.errors import AllmError, ModelNotAllowed, ModelNotFound, ModelNotReady, Unsupported
from services.models.descriptor import ModelFacts
from services.models.desired import DesiredModel
from services.models.manifest import Manifest, ManifestFile
from services.models.store import ModelStore, StoredModel
from services.residency.registered_models import RegisteredModels


def stored(model_id: str, *aliases: str) -> StoredModel:
    facts = ModelFacts(
        id=model_id,
        modality="text",
        format="gguf",
        architecture="llama",
        capabilities=frozenset({"chat"}),
        size=5,
        context_tokens=2048,
    )
    manifest = Manifest(files=(ManifestFile(path="m.gguf", size=5),), primary="m.gguf", folder="/models")
    desired = DesiredModel(
        facts=facts, aliases=aliases, source="file:///m", generation=1, manifest=manifest, created=1, updated=1
    )
    return StoredModel(desired=desired, serving=None, problem=None)


@pytest.fixture
def store() -> ModelStore:
    store = ModelStore("me")
    store.put(stored("small", "gpt-4o"))
    store.put(stored("large-a"))
    return store


@pytest.fixture
def models(store: ModelStore) -> RegisteredModels:
    return RegisteredModels(store, None)  # type: ignore[arg-type] - nothing is loaded


async def as_caller(allowed: tuple[str, ...], work: Callable[[], Awaitable[StoredModel]]) -> str:
    """Runs `work` as a caller with a model list. Returns the model's id, or the name of the error's class."""

    async def run() -> str:
        keep_caller(Caller(Identity("key_ann", frozenset({INFERENCE}), allowed)))
        try:
            return (await work()).id
        except AllmError as error:
            return type(error).__name__

    return await asyncio.create_task(run())


@pytest.mark.parametrize(
    ("allowed", "name", "found"),
    [
        ((), "small", "small"),
        ((), "gpt-4o", "small"),
        (("small",), "gpt-4o", "small"),
        (("gpt-4o",), "small", "small"),
        (("gpt-*",), "small", "small"),
        (("small",), "large-a", "ModelNotAllowed"),
        (("large-*",), "large-a", "large-a"),
        (("large-*",), "gpt-4o", "ModelNotAllowed"),
        (("small",), "never-was", "ModelNotAllowed"),
        (("never-*",), "never-was", "ModelNotFound"),
        ((), "never-was", "ModelNotFound"),
    ],
)
async def test_names(models: RegisteredModels, allowed: tuple[str, ...], name: str, found: str) -> None:
    assert await as_caller(allowed, lambda: models.find(name)) == found


async def test_an_alias_that_moves_takes_the_permission_along(store: ModelStore, models: RegisteredModels) -> None:
    store.put(stored("small"))
    store.put(stored("large-a", "gpt-4o"))
    assert await as_caller(("gpt-4o",), lambda: models.find("gpt-4o")) == "large-a"
    assert await as_caller(("gpt-4o",), lambda: models.find("small")) == "ModelNotAllowed"


@pytest.mark.parametrize(
    ("problem", "restricted"),
    [
        (ModelNotFound("The model `x` is not served by this group, but by 'other'."), "ModelNotAllowed"),
        (Unsupported("The model `x` is for images, not for text.", param="model"), "ModelNotAllowed"),
        (ModelNotReady("the catalog cannot be asked"), "ModelNotReady"),
    ],
)
async def test_catalog_entries_of_others(
    store: ModelStore, models: RegisteredModels, problem: AllmError, restricted: str
) -> None:
    async def ask(_: str) -> None:
        raise problem

    store.ask = ask
    assert await as_caller(("small",), lambda: models.find("x")) == restricted
    assert await as_caller((), lambda: models.find("x")) == type(problem).__name__
    assert await as_caller(("x",), lambda: models.find("x")) == type(problem).__name__


async def test_a_model_that_was_just_registered(store: ModelStore, models: RegisteredModels) -> None:
    async def ask(_: str) -> None:
        store.put(stored("new", "newest"))

    store.ask = ask
    assert await as_caller(("new",), lambda: models.find("newest")) == "new"


async def test_the_error_names_the_model_and_the_key(models: RegisteredModels) -> None:
    async def run() -> None:
        keep_caller(Caller(Identity("key_ann", frozenset({INFERENCE}), ("small",))))
        with pytest.raises(ModelNotAllowed) as caught:
            await models.find("large-a")
        error = caught.value
        assert (error.http_status, error.openai_code, error.param) == (403, "model_not_allowed", "model")
        assert error.message == "The key key_ann may not use the model `large-a`."
        with pytest.raises(ModelNotAllowed):
            models.check_allowed("large-a")
        with pytest.raises(ModelNotAllowed):
            models.check_allowed("deleted")
        models.check_allowed("small")

    await asyncio.create_task(run())
