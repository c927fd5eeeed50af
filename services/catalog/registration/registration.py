"""A registered model, and its rows in the database.

The JSON columns hold the fields of ModelFacts, Manifest, Part, ImageDefaults, EngineSettings and Artifact under their
names: renaming one of those fields needs a migration (a test holds a row of the first version).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from services.errors import ModelInvalid
from services.models.descriptor import EngineSettings, ModelFacts
from services.models.desired import Artifact, DesiredModel, ImageDefaults, Part
from services.models.manifest import Manifest
from services.models.registry import Measurement

_encode = msgspec.json.Encoder(order="deterministic").encode
_facts = msgspec.json.Decoder(ModelFacts).decode
_manifest = msgspec.json.Decoder(Manifest).decode
_parts = msgspec.json.Decoder(tuple[Part, ...]).decode
_image_defaults = msgspec.json.Decoder(ImageDefaults).decode
_engine = msgspec.json.Decoder(EngineSettings).decode
_artifacts = msgspec.json.Decoder(tuple[Artifact, ...]).decode

_COLUMNS = (
    "source, generation, facts, manifest, artifacts, fingerprint, keep_loaded, runtime, unloads, created, updated, "
    "parts, image_defaults, declared, registered_runtime, engine"
)
_SET = ", ".join(f"{column.strip()} = ?" for column in _COLUMNS.split(","))
_MARKS = ", ".join("?" for _ in _COLUMNS.split(","))


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


def insert(connection: sqlite3.Connection, registration: Registration) -> int:
    """Writes a new model and returns its serial. Raises NameTaken."""
    statement = f"INSERT INTO models (id, {_COLUMNS}) VALUES (?, {_MARKS})"  # noqa: S608 (fixed names)
    try:
        serial = connection.execute(statement, (registration.id, *_values(registration))).lastrowid
    except sqlite3.IntegrityError:
        _raise_if_taken(connection, (registration.id,), 0)
        raise
    if serial is None:
        raise sqlite3.DatabaseError("the new row has no number")
    _write_names(connection, serial, registration.names)
    _write_measurements(connection, serial, registration)
    return serial


def update(connection: sqlite3.Connection, registration: Registration) -> None:
    """Overwrites a stored model with all its rows. Raises NameTaken."""
    statement = f"UPDATE models SET {_SET} WHERE serial = ?"  # noqa: S608 (fixed names)
    connection.execute(statement, (*_values(registration), registration.serial))
    connection.execute("DELETE FROM names WHERE model = ?", (registration.serial,))
    _write_names(connection, registration.serial, registration.names)
    connection.execute("DELETE FROM benchmarks WHERE model = ?", (registration.serial,))
    _write_measurements(connection, registration.serial, registration)


def delete(connection: sqlite3.Connection, serial: int) -> None:
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
    for serial, runtime, device, speed, first, memory, recorded in connection.execute(query):
        measurement = Measurement(
            runtime=runtime,
            device=device,
            tokens_per_second=speed,
            first_token_seconds=first,
            peak_memory=memory,
        )
        measured.setdefault(serial, []).append((measurement, recorded))
    query = f"SELECT serial, id, {_COLUMNS} FROM models ORDER BY id"  # noqa: S608 (fixed names)
    return [_read(row, names.get(row[0], []), measured.get(row[0], [])) for row in connection.execute(query)]


def _read(row: tuple[object, ...], names: list[str], measured: list[tuple[Measurement, int]]) -> Registration:
    serial, model_id, source, generation, facts, manifest, artifacts, fingerprint, keep, runtime, *rest = row
    unloads, created, updated, parts_text, image_defaults, declared, registered_runtime, engine = rest
    try:
        desired = DesiredModel(
            facts=_facts(str(facts)),
            aliases=tuple(names[1:]),
            source=str(source),
            generation=_whole(generation),
            manifest=_manifest(str(manifest)),
            parts=_parts(str(parts_text)),
            image_defaults=_image_defaults(str(image_defaults)),
            artifacts=_artifacts(str(artifacts)),
            created=_whole(created),
            updated=_whole(updated),
            measured=tuple(measurement for measurement, _ in measured),
            keep_loaded=bool(keep),
            runtime=str(runtime),
            registered_runtime=str(registered_runtime),
            engine=_engine(str(engine)),
            unloads=_whole(unloads),
        )
        parts = [part.manifest for part in desired.parts]
        for one in (desired.manifest, *parts, *(artifact.manifest for artifact in desired.artifacts)):
            one.check()
    except (msgspec.MsgspecError, ModelInvalid, TypeError) as error:
        raise ModelInvalid(f"the catalog's record of the model {model_id!r} cannot be read: {error}") from error
    if not names or names[0] != model_id or desired.id != model_id:
        raise ModelInvalid(f"the catalog's record of the model {model_id!r} cannot be read: its names do not match")
    return Registration(
        serial=_whole(serial),
        desired=desired,
        fingerprint=str(fingerprint),
        declared=str(declared),
        recorded=tuple(at for _, at in measured),
    )


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _values(registration: Registration) -> tuple[object, ...]:
    """Returns the row's values in the order of `_COLUMNS`."""
    desired = registration.desired
    return (
        desired.source,
        desired.generation,
        _text(desired.facts),
        _text(desired.manifest),
        _text(desired.artifacts),
        registration.fingerprint,
        int(desired.keep_loaded),
        desired.runtime,
        desired.unloads,
        desired.created,
        desired.updated,
        _text(desired.parts),
        _text(desired.image_defaults),
        registration.declared,
        desired.registered_runtime,
        _text(desired.engine),
    )


def _text(value: object) -> str:
    return _encode(value).decode()


def _write_names(connection: sqlite3.Connection, serial: int, names: tuple[str, ...]) -> None:
    rows = ((name, serial, place) for place, name in enumerate(names))
    try:
        connection.executemany("INSERT INTO names (name, model, place) VALUES (?, ?, ?)", rows)
    except sqlite3.IntegrityError:
        _raise_if_taken(connection, names, serial)
        raise


def _write_measurements(connection: sqlite3.Connection, serial: int, registration: Registration) -> None:
    rows = (
        (
            serial,
            measured.runtime,
            measured.device,
            measured.tokens_per_second,
            measured.first_token_seconds,
            measured.peak_memory,
            at,
        )
        for measured, at in zip(registration.desired.measured, registration.recorded, strict=True)
    )
    connection.executemany("INSERT INTO benchmarks VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _raise_if_taken(connection: sqlite3.Connection, names: Iterable[str], besides: int) -> None:
    query = "SELECT models.id FROM names JOIN models ON serial = model WHERE name = ? AND serial != ?"
    for name in names:
        if found := connection.execute(query, (name, besides)).fetchone():
            raise NameTaken(name, found[0])
