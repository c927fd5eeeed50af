"""The SQLite file of stored responses: private, intact, and untouched if it is another kind of file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from services.storage import DatabaseUnusable
from services.text.responses.response import Response, ResponseSettings
from services.text.responses.sqlite_store import SqliteResponseStore
from services.text.responses.store import encode
from tests.text.responses.scripted_chat import said
from tests.text.responses.store_clock import START, Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses.db"


def response() -> Response:
    output = (said("out", "assistant", "resp_1_out"),)
    return Response(
        id="resp_1", model="m", created=START, settings=ResponseSettings(store=True), status="completed", output=output
    )


def given() -> tuple[object, ...]:
    return (said("in", "user", "msg_in"),)


def test_settings_are_stored_under_the_name_that_older_versions_read() -> None:
    assert b'"asked":{"instructions"' in encode(response())


async def test_deleted_response_leaves_no_items(path: Path, clock: Clock) -> None:
    store = await SqliteResponseStore.open(path, 30, clock)
    await store.add("ann", response(), given())
    await store.delete("ann", "resp_1")
    await store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM items").fetchone() == (0,)
    connection.close()


async def test_the_file_is_private_and_survives(path: Path, clock: Clock) -> None:
    first = await SqliteResponseStore.open(path, 30, clock)
    await first.add("ann", response(), given())
    assert {found.stat().st_mode & 0o777 for found in path.parent.iterdir()} == {0o600}
    await first.close()
    second = await SqliteResponseStore.open(path, 30, clock)
    assert await second.get("ann", "resp_1") == response()
    await second.close()


async def test_setting_the_hosts_clock_keeps_running_responses(path: Path, clock: Clock) -> None:
    """Only the ticks decide, which begin at 0 again after a reboot."""
    ticks = Clock(1000.0)
    store = await SqliteResponseStore.open(path, 30, clock, ticks=ticks)
    running = msgspec.structs.replace(response(), status="in_progress")
    await store.add_background("ann", running, given(), "runner")
    for hours in (1, -2):
        clock.now += hours * 3600
        assert (await store.get("ann", "resp_1")).status == "in_progress"
        assert await store.beat("runner", ["resp_1"]) == {"resp_1"}
    ticks.now = 1.0
    assert (await store.get("ann", "resp_1")).status == "failed"
    await store.close()


@pytest.mark.parametrize(
    ("statement", "said_of_it"),
    [("CREATE TABLE t (x)", "not allm's"), ("PRAGMA user_version = 9", "not allm's"), ("", "another version")],
)
async def test_a_file_of_something_else_is_left_alone(path: Path, statement: str, said_of_it: str) -> None:
    if statement:
        connection = sqlite3.connect(path)
        connection.execute(statement)
    else:
        await (await SqliteResponseStore.open(path, 30)).close()
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    before = path.read_bytes()  # noqa: ASYNC240
    with pytest.raises(DatabaseUnusable, match=said_of_it) as caught:
        await SqliteResponseStore.open(path, 30)
    assert "ALLM_STORE=off" in str(caught.value)
    assert path.read_bytes() == before  # noqa: ASYNC240


async def test_a_damaged_file_is_reported(path: Path) -> None:
    path.write_bytes(b"nonsense" * 1000)  # noqa: ASYNC240
    with pytest.raises(DatabaseUnusable, match="cannot be read"):
        await SqliteResponseStore.open(path, 30)
