"""The registrations: unique names, atomic changes, the same state in memory and on disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from services.catalog.database import MIGRATIONS, CatalogDatabase
from services.catalog.registration.registrations import Registration, Registrations
from services.errors import ModelExists, ModelInvalid, ModelNotFound
from services.models.descriptor import EngineSettings
from services.models.desired import ImageDefaults, ModelPart
from tests.catalog.desired_model import ARTIFACT, MEASURED, desired


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[Registrations]:
    database = await CatalogDatabase.open(home / "c.db", MIGRATIONS)
    try:
        yield await Registrations.load(database)
    finally:
        await database.close()


def renamed(*aliases: str):
    return lambda old: replace(old, desired=replace(old.desired, aliases=aliases))


async def read_again(home: Path) -> list[Registration]:
    async with opened(home) as registrations:
        return list(registrations)


async def test_everything_of_a_model_survives_a_restart(tmp_path: Path) -> None:
    parts = (
        ModelPart(kind="base", source="", manifest=ARTIFACT.manifest),
        ModelPart(kind="lora", source="file:///l.safetensors", manifest=ARTIFACT.manifest, scale=-0.5),
    )
    drawn = ImageDefaults(steps=20, guidance=2.5)
    wanted = desired(
        "m",
        "b",
        "a",
        artifacts=(ARTIFACT,),
        runtime="torch",
        keep_loaded=True,
        unloads=3,
        parts=parts,
        image_defaults=drawn,
        registered_runtime="vllm",
        engine=EngineSettings(tensor_parallel=2, kv_tokens=2**40, dtype="float32"),
    )
    async with opened(tmp_path) as registrations:
        added = await registrations.add(wanted, "print")
        added = await registrations.record(added, MEASURED)
    (found,) = await read_again(tmp_path)
    assert found == added
    assert found.desired == replace(wanted, measured=(MEASURED,))
    assert found.fingerprint == "print"
    assert found.names == ("m", "b", "a"), "aliases keep their order"


async def test_a_row_of_the_first_version_is_still_read(tmp_path: Path) -> None:
    """Renaming a field of a JSON column requires a migration."""
    await (await CatalogDatabase.open(tmp_path / "c.db", MIGRATIONS[:1])).close()
    facts = (
        '{"id":"m","modality":"text","format":"safetensors","architecture":"llama","capabilities":["chat"],'
        '"size":5,"context_tokens":64}'
    )
    files = '[{"path":"a/b","size":5,"sha256":""}]'
    manifest = f'{{"files":{files},"primary":"a/b","repository":"org/m","revision":"r","folder":""}}'
    artifacts = f'[{{"runtime":"llama_cpp","devices":["cpu"],"facts":{facts},"manifest":{manifest}}}]'
    with closing(sqlite3.connect(tmp_path / "c.db")) as connection, connection:
        row = (1, "m", "hf://org/m", 2, facts, manifest, artifacts, "", 1, "torch", 4, 100, 200)
        connection.execute("INSERT INTO models VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        connection.executemany("INSERT INTO names VALUES (?, 1, ?)", [("m", 0), ("alias", 1)])
        connection.execute("INSERT INTO benchmarks VALUES (1, 'torch', 'cpu', 10.5, 0.25, 1000, 150)")
    (found,) = await read_again(tmp_path)
    assert (found.desired.generation, found.desired.unloads, found.desired.updated) == (2, 4, 200)
    assert found.desired.facts.context_tokens == 64
    assert found.desired.manifest.files[0].path == "a/b"
    assert found.desired.artifacts[0].name == "org/m@r"
    assert found.desired.measured[0].tokens_per_second == 10.5
    assert found.recorded == (150,)
    assert (found.desired.parts, found.desired.image_defaults) == ((), ImageDefaults()), "what later versions added"
    assert (found.desired.runtime, found.desired.registered_runtime) == ("torch", ""), "it was asked for by LoadModel"
    assert found.desired.engine == EngineSettings()


@pytest.mark.parametrize(
    ("declared", "registered"),
    [
        ('{"source":"x","runtime":"torch"}', "torch"),
        ('{"source":"x","runtime":""}', ""),
        ('{"source":"x"}', ""),
        ("", ""),
    ],
)
async def test_runtime_of_the_models_file_becomes_the_registered_one(
    tmp_path: Path, declared: str, registered: str
) -> None:
    """The database predates the column; an operator may have loaded the model with another runtime since."""
    await (await CatalogDatabase.open(tmp_path / "c.db", MIGRATIONS[:4])).close()
    with closing(sqlite3.connect(tmp_path / "c.db")) as connection, connection:
        connection.execute(
            "INSERT INTO models VALUES (1, 'm', 'x', 1, ?, ?, '[]', '', 1, 'other', 0, 1, 1, '[]', '{}', ?)",
            (*(msgspec.json.encode(part).decode() for part in (desired("m").facts, desired("m").manifest)), declared),
        )
        connection.execute("INSERT INTO names VALUES ('m', 1, 0)")
    (found,) = await read_again(tmp_path)
    assert (found.desired.runtime, found.desired.registered_runtime) == ("other", registered)


@pytest.mark.parametrize("column", ["facts", "manifest", "artifacts", "parts"])
async def test_a_row_that_cannot_be_understood_is_named(tmp_path: Path, column: str) -> None:
    async with opened(tmp_path) as registrations:
        await registrations.add(desired("org/m"), "")
    with closing(sqlite3.connect(tmp_path / "c.db")) as connection, connection:
        connection.execute(f"UPDATE models SET {column} = '{{}}'")  # noqa: S608 (our own words)
    with pytest.raises(ModelInvalid, match="the catalog's record of the model 'org/m' cannot be read"):
        await read_again(tmp_path)


async def test_a_written_path_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as registrations:
        await registrations.add(desired("m"), "")
    with closing(sqlite3.connect(tmp_path / "c.db")) as connection, connection:
        connection.execute("UPDATE models SET manifest = replace(manifest, 'm.gguf', '../../etc/x')")
    with pytest.raises(ModelInvalid, match="leaves the model's folder"):
        await read_again(tmp_path)


@pytest.mark.parametrize(
    ("names", "param", "words"),
    [
        (("m",), "id", "a model 'm' is registered already (gguf, from file:///files/m.gguf)"),
        (("alias",), "id", "the name 'alias' is an alias of the model 'm' (gguf, from file:///files/m.gguf)"),
        (("other", "alias"), "aliases", "the name 'alias' is an alias of the model 'm'"),
        (("other", "m"), "aliases", "a model 'm' is registered already"),
    ],
)
async def test_a_taken_name_is_refused_and_nothing_changes(
    tmp_path: Path, names: tuple[str, ...], param: str, words: str
) -> None:
    async with opened(tmp_path) as registrations:
        first = await registrations.add(desired("m", "alias"), "")
        with pytest.raises(ModelExists) as caught:
            await registrations.add(desired(*names), "")
        assert words in caught.value.message
        assert caught.value.param == param
        assert list(registrations) == [first]
    assert await read_again(tmp_path) == [first]


@pytest.mark.parametrize("names", [("hidden",), ("new", "hidden")])
async def test_the_database_refuses_a_name_by_itself(tmp_path: Path, names: tuple[str, ...]) -> None:
    """The name may be unknown to this process; nothing of the model is written then."""
    async with opened(tmp_path) as registrations:
        await registrations.add(desired("m"), "")
        with closing(sqlite3.connect(tmp_path / "c.db")) as connection, connection:
            connection.execute("INSERT INTO names SELECT 'hidden', serial, 9 FROM models")
        with pytest.raises(ModelExists, match="'hidden' is an alias of the model 'm'"):
            await registrations.add(desired(*names), "")
        await registrations.add(desired("good"), "")
        assert [one.id for one in registrations] == ["good", "m"]
    assert [one.id for one in await read_again(tmp_path)] == ["good", "m"]


async def test_two_at_the_same_time_for_one_name(tmp_path: Path) -> None:
    async with opened(tmp_path) as registrations:
        tries = [registrations.add(desired(f"m{number}", "same"), "") for number in range(5)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert [type(result) for result in results] == [Registration, *[ModelExists] * 4]
        assert len(registrations) == 1


async def test_a_change_is_written_and_its_names_are_moved(tmp_path: Path) -> None:
    async with opened(tmp_path) as registrations:
        messages: list[str] = []
        registrations.on_change = messages.append
        first = await registrations.add(desired("m", "old", "kept"), "")
        changed = await registrations.change(first, renamed("kept", "new"))
        assert registrations.get("new") is changed
        with pytest.raises(ModelNotFound):
            registrations.get("old")
        assert (await registrations.change(changed, renamed("kept", "new"))) is changed
        assert messages == ["m", "m"], "no change is none"
        other = await registrations.add(desired("other", "old"), "")
        with pytest.raises(ModelExists, match="'new' is an alias of the model 'm'"):
            await registrations.change(other, renamed("old", "new"))
        assert registrations.get("old") is other
        before = list(registrations)
    assert await read_again(tmp_path) == before


async def test_a_model_that_was_deleted_is_gone_with_its_names(tmp_path: Path) -> None:
    async with opened(tmp_path) as registrations:
        first = await registrations.add(desired("m", "a"), "")
        await registrations.record(first, MEASURED)
        await registrations.remove(registrations.get("a"))
        for work in (registrations.remove(first), registrations.change(first, renamed("b"))):
            with pytest.raises(ModelNotFound):
                await work
        again = await registrations.add(desired("a", "m"), "")
        assert again.serial > first.serial
        assert again.desired.measured == ()
        with pytest.raises(ModelNotFound):
            await registrations.remove(first)
        anew = await registrations.change(again, renamed())
        assert list(registrations) == [anew]
    assert await read_again(tmp_path) == [anew]


async def test_an_earlier_model_of_the_same_id_is_another(tmp_path: Path) -> None:
    async with opened(tmp_path) as registrations:
        first = await registrations.add(desired("m"), "")
        await registrations.remove(first)
        second = await registrations.add(desired("m"), "")
        with pytest.raises(ModelNotFound, match="was just deleted"):
            await registrations.change(first, renamed("x"))
        assert list(registrations) == [second]


async def test_a_caller_who_gives_up_leaves_memory_and_disk_alike(tmp_path: Path) -> None:
    async with opened(tmp_path) as registrations:
        adding = asyncio.create_task(registrations.add(desired("m"), ""))
        await asyncio.sleep(0)  # until the write has begun
        await asyncio.sleep(0)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        await registrations.close()
        assert [one.id for one in registrations] == ["m"]
    assert [one.id for one in await read_again(tmp_path)] == ["m"]


async def test_a_newer_measurement_replaces_that_of_its_runtime_and_device(tmp_path: Path) -> None:
    async with opened(tmp_path) as registrations:
        found = await registrations.add(desired("m"), "")
        elsewhere = replace(MEASURED, device="cuda")
        better = replace(MEASURED, tokens_per_second=99.0)
        for measured in (MEASURED, elsewhere, better):
            found = await registrations.record(found, measured)
        assert set(found.desired.measured) == {elsewhere, better}
        assert len(found.recorded) == 2
    assert {one.desired.measured for one in await read_again(tmp_path)} <= {(better, elsewhere), (elsewhere, better)}
