"""All registered models: changes go to disk first and then become visible; lookups use memory only.

The JSON columns hold the fields of ModelFacts, Manifest, ModelPart, ImageDefaults, EngineSettings and Artifact under
their names: renaming one of those fields needs a migration (a test holds a row of the first version).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, TypeVar

import msgspec

from services.catalog import metrics
from services.catalog.database import CatalogDatabase, WholeChanges
from services.errors import InvalidRequest, ModelExists, ModelInvalid, ModelNotFound
from services.models.descriptor import EngineSettings, ModelFacts
from services.models.desired import Artifact, DesiredModel, ImageDefaults, ModelPart
from services.models.manifest import Manifest
from services.models.runtime_choice import Measurement

MAX_MODELS = 10_000  # the most that a replica's report may hold
_encode = msgspec.json.Encoder(order="deterministic").encode
# The columns of a model's row that hold a field of DesiredModel under its name: first those in JSON, then the others.
_JSON: Mapping[str, Callable[[str], Any]] = {
    "facts": msgspec.json.Decoder(ModelFacts).decode,
    "manifest": msgspec.json.Decoder(Manifest).decode,
    "artifacts": msgspec.json.Decoder(tuple[Artifact, ...]).decode,
    "parts": msgspec.json.Decoder(tuple[ModelPart, ...]).decode,
    "image_defaults": msgspec.json.Decoder(ImageDefaults).decode,
    "engine": msgspec.json.Decoder(EngineSettings).decode,
}
_PLAIN = ("source", "generation", "keep_loaded", "runtime", "unloads", "created", "updated", "registered_runtime")
_MEASURED = tuple(field.name for field in fields(Measurement))  # columns between the first and last of benchmarks
_COLUMNS = (*_JSON, *_PLAIN, "fingerprint", "declared")
_INSERT = f"INSERT INTO models (id, {', '.join(_COLUMNS)}) VALUES (?{', ?' * len(_COLUMNS)})"  # noqa: S608 (constants)
_UPDATE = f"UPDATE models SET {', '.join(f'{name} = ?' for name in _COLUMNS)} WHERE serial = ?"  # noqa: S608
_SELECT = f"SELECT serial, id, {', '.join(_COLUMNS)} FROM models ORDER BY id"  # noqa: S608


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A model as stored in the database."""

    serial: int  # never reused: distinguishes it from an earlier model of the same id
    desired: DesiredModel  # without ready_replicas, which are not stored
    fingerprint: str  # of local files when the generation began; empty for the hub
    declared: str = ""  # the models file entry as applied; empty: an operator registered the model by hand
    recorded: tuple[int, ...] = ()  # when each of desired.measured was recorded, in seconds since the epoch

    @property
    def id(self) -> str:
        """The model's id."""
        return self.desired.id

    @property
    def names(self) -> tuple[str, ...]:
        """Its id and its aliases."""
        return (self.desired.id, *self.desired.aliases)

    def with_measurement(self, measurement: Measurement, recorded: int) -> Registration:
        """Returns a copy with this measurement, which replaces an older one of its runtime and device."""
        key = (measurement.runtime, measurement.device)
        kept = {
            (measured.runtime, measured.device): (measured, at)
            for measured, at in zip(self.desired.measured, self.recorded, strict=True)
        } | {key: (measurement, recorded)}
        desired = replace(self.desired, measured=tuple(measured for measured, _ in kept.values()))
        return replace(self, desired=desired, recorded=tuple(at for _, at in kept.values()))


class NameTaken(Exception):
    """The database refused an id or alias that is taken; nothing was written."""

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(name)
        self.name = name
        self.holder = holder  # id of the model that has the name


def _insert(connection: sqlite3.Connection, registration: Registration) -> int:
    """Writes a new model and returns its serial. Raises NameTaken."""
    try:
        serial = connection.execute(_INSERT, (registration.id, *_values(registration))).lastrowid
    except sqlite3.IntegrityError:
        _raise_if_taken(connection, (registration.id,), 0)
        raise
    if serial is None:
        raise sqlite3.DatabaseError("the new row has no number")
    _write_names(connection, serial, registration.names)
    _write_measurements(connection, serial, registration)
    return serial


def _update(connection: sqlite3.Connection, registration: Registration) -> None:
    """Overwrites a stored model with all its rows. Raises NameTaken."""
    connection.execute(_UPDATE, (*_values(registration), registration.serial))
    connection.execute("DELETE FROM names WHERE model = ?", (registration.serial,))
    _write_names(connection, registration.serial, registration.names)
    connection.execute("DELETE FROM benchmarks WHERE model = ?", (registration.serial,))
    _write_measurements(connection, registration.serial, registration)


def _delete(connection: sqlite3.Connection, serial: int) -> None:
    """Deletes a model, with its names and measurements."""
    connection.execute("DELETE FROM models WHERE serial = ?", (serial,))


def read_all(connection: sqlite3.Connection) -> list[Registration]:
    """Reads every model of the database.

    Raises:
        ModelInvalid: a model's row cannot be read; the message names the model.
    """
    names: dict[int, list[str]] = {}
    for serial, name in connection.execute("SELECT model, name FROM names ORDER BY model, place"):
        names.setdefault(serial, []).append(name)
    measured: dict[int, list[tuple[Measurement, int]]] = {}
    query = "SELECT * FROM benchmarks ORDER BY model, recorded, runtime, device"
    for serial, *values, recorded in connection.execute(query):
        measured.setdefault(serial, []).append((Measurement(**dict(zip(_MEASURED, values, strict=True))), recorded))
    return [
        _read(
            serial, model_id, dict(zip(_COLUMNS, values, strict=True)), names.get(serial, []), measured.get(serial, [])
        )
        for serial, model_id, *values in connection.execute(_SELECT)
    ]


def _read(
    serial: int, model_id: str, row: Mapping[str, Any], names: list[str], measured: list[tuple[Measurement, int]]
) -> Registration:
    try:
        desired = DesiredModel(
            **{name: decode(row[name]) for name, decode in _JSON.items()},
            **{name: row[name] for name in _PLAIN} | {"keep_loaded": bool(row["keep_loaded"])},
            aliases=tuple(names[1:]),
            measured=tuple(measurement for measurement, _ in measured),
        )
        parts = [part.manifest for part in desired.parts]
        for one in (desired.manifest, *parts, *(artifact.manifest for artifact in desired.artifacts)):
            one.check()
    except (msgspec.MsgspecError, ModelInvalid) as error:
        raise ModelInvalid(f"the catalog's record of the model {model_id!r} cannot be read: {error}") from error
    if not names or names[0] != model_id or desired.id != model_id:
        raise ModelInvalid(f"the catalog's record of the model {model_id!r} cannot be read: its names do not match")
    recorded = tuple(at for _, at in measured)
    return Registration(
        serial=serial, desired=desired, fingerprint=row["fingerprint"], declared=row["declared"], recorded=recorded
    )


def _values(registration: Registration) -> tuple[object, ...]:
    """Returns the row's values in the order of `_COLUMNS`."""
    desired = registration.desired
    encoded = (_encode(getattr(desired, name)).decode() for name in _JSON)
    return *encoded, *(getattr(desired, name) for name in _PLAIN), registration.fingerprint, registration.declared


def _write_names(connection: sqlite3.Connection, serial: int, names: tuple[str, ...]) -> None:
    rows = ((name, serial, place) for place, name in enumerate(names))
    try:
        connection.executemany("INSERT INTO names (name, model, place) VALUES (?, ?, ?)", rows)
    except sqlite3.IntegrityError:
        _raise_if_taken(connection, names, serial)
        raise


def _write_measurements(connection: sqlite3.Connection, serial: int, registration: Registration) -> None:
    measured = zip(registration.desired.measured, registration.recorded, strict=True)
    rows = ((serial, *astuple(one), recorded) for one, recorded in measured)
    connection.executemany("INSERT INTO benchmarks VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _raise_if_taken(connection: sqlite3.Connection, names: Iterable[str], besides: int) -> None:
    query = "SELECT models.id FROM names JOIN models ON serial = model WHERE name = ? AND serial != ?"
    for name in names:
        if found := connection.execute(query, (name, besides)).fetchone():
            raise NameTaken(name, found[0])


T = TypeVar("T")


class Registrations:
    """The table of models, with a copy in memory. `on_change` receives the id of each changed model."""

    def __init__(self, database: CatalogDatabase, found: list[Registration]) -> None:
        self.on_change: Callable[[str], None] = lambda _: None
        self._database = database
        self._changes = WholeChanges()
        self._models = {one.id: one for one in found}
        self._ids = {name: one.id for one in found for name in one.names}
        metrics.REGISTRATIONS.set(len(self._models))

    @classmethod
    async def load(cls, database: CatalogDatabase) -> Registrations:
        """Reads all models. Raises ModelInvalid if one cannot be read."""
        return cls(database, await database.read(read_all))

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[Registration]:
        """All models, by id."""
        return iter([self._models[model_id] for model_id in sorted(self._models)])

    def find(self, model_id: str) -> Registration | None:
        """Returns the model with that id, not alias; None if there is none."""
        return self._models.get(model_id)

    def knows(self, name: str) -> bool:
        """Reports whether a model has this id or alias."""
        return name in self._ids

    def get(self, name: str) -> Registration:
        """Returns the model with that id or alias. Raises ModelNotFound."""
        found = self._ids.get(name)
        if found is None:
            raise ModelNotFound(f"The model `{name}` does not exist.", param="model")
        return self._models[found]

    def check_free(self, model_id: str, aliases: tuple[str, ...]) -> None:
        """Checks that no other model has the names of a new one. Raises ModelExists."""
        for name in (model_id, *aliases):
            if holder := self._ids.get(name):
                raise self._taken(name, holder, model_id)

    def check_aliases_free(self, model_id: str, aliases: tuple[str, ...]) -> None:
        """Checks that no other model has a model's new aliases. Raises ModelExists."""
        for name in aliases:
            if (holder := self._ids.get(name, model_id)) != model_id:
                raise self._taken(name, holder, model_id)

    async def add(self, desired: DesiredModel, fingerprint: str, declared: str = "") -> Registration:
        """Registers a model; `declared` is its models file entry.

        Raises:
            ModelExists: its id or an alias is taken; nothing has changed.
            InvalidRequest: there are too many models.
        """

        async def work() -> Registration:
            self.check_free(desired.id, desired.aliases)
            if len(self) >= MAX_MODELS:
                raise InvalidRequest(f"{MAX_MODELS} models are registered, which is the limit: delete some first")
            new = Registration(serial=0, desired=desired, fingerprint=fingerprint, declared=declared)
            serial = await self._write(desired.id, lambda connection: _insert(connection, new))
            new = replace(new, serial=serial)
            self._show(None, new)
            return new

        return await self._changes.run(work)

    async def change(self, found: Registration, change: Callable[[Registration], Registration]) -> Registration:
        """Applies `change` to a model's current registration; writes nothing if the result is equal.

        Raises:
            ModelNotFound: the model no longer exists.
            ModelExists: one of its new aliases is taken; nothing has changed.
        """

        async def work() -> Registration:
            old = self._now(found)
            new = change(old)
            if new == old:
                return old
            self.check_aliases_free(old.id, new.desired.aliases)
            await self._write(old.id, lambda connection: _update(connection, new))
            self._show(old, new)
            return new

        return await self._changes.run(work)

    async def record(self, found: Registration, measurement: Measurement) -> Registration:
        """Stores a measurement with the current time. Raises ModelNotFound."""
        return await self.change(found, lambda old: old.with_measurement(measurement, int(time.time())))

    async def remove(self, found: Registration) -> None:
        """Deletes a model. Raises ModelNotFound."""

        async def work() -> None:
            old = self._now(found)
            await self._write(old.id, lambda connection: _delete(connection, old.serial))
            self._show(old, None)

        await self._changes.run(work)

    async def close(self) -> None:
        """Waits for pending writes."""
        await self._changes.close()

    async def _write(self, model_id: str, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._database.write(work)
        except NameTaken as error:  # memory did not know: another process wrote to the file
            raise self._taken(error.name, error.holder, model_id) from error

    def _show(self, old: Registration | None, new: Registration | None) -> None:
        for name in old.names if old else ():
            del self._ids[name]
        if old:
            del self._models[old.id]
        if new:
            self._models[new.id] = new
            self._ids |= dict.fromkeys(new.names, new.id)
        metrics.REGISTRATIONS.set(len(self._models))
        changed = new or old
        if changed:
            self.on_change(changed.id)

    def _now(self, found: Registration) -> Registration:
        """Returns a model's current registration. A new model with the same id does not count as the same."""
        now = self._models.get(found.id)
        if now is None or now.serial != found.serial:
            raise ModelNotFound(f"The model `{found.id}` does not exist: it was just deleted.", param="model")
        return now

    def _taken(self, name: str, holder: str, wanted_by: str) -> ModelExists:
        what = f"a model {name!r} is registered already"
        if name != holder:
            what = f"the name {name!r} is an alias of the model {holder!r}"
        if found := self._models.get(holder):
            what += f" ({found.desired.facts.format}, from {found.desired.source})"
        return ModelExists(f"{what}; nothing was changed", param="id" if name == wanted_by else "aliases")
