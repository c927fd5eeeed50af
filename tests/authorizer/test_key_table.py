"""The key snapshot outlives the process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.authorizer import key_table
from services.authorizer.key_table import KeySnapshot, KeyTable
from services.storage import replace_file
from tests.authorizer.known_keys import known, shown_key, table

PATIENCE = 60.0  # seconds


@asynccontextmanager
async def kept(path: Path, keys: KeyTable) -> AsyncIterator[KeySnapshot]:
    snapshot = KeySnapshot(path, keys)
    keeping = asyncio.create_task(snapshot.keep())
    try:
        yield snapshot
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping


def loaded(path: Path) -> KeyTable:
    keys = KeyTable()
    assert KeySnapshot(path, keys).load()
    return keys


async def until_it_holds(path: Path, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while not (await asyncio.to_thread(path.exists)) or len(loaded(path)) != count:  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.01)


async def test_every_change_is_written(tmp_path: Path) -> None:
    path, keys = tmp_path / "new" / "keys.json", KeyTable()
    async with kept(path, keys):
        ann = known("ann", models=("m*",), requests_per_minute=3, tokens_per_minute=4, expires=5)
        keys.put(ann)
        keys.put(known("bob"))
        await until_it_holds(path, 2)
        assert loaded(path).find(shown_key("ann")) == ann
        assert loaded(path).loaded
        keys.remove("key_ann")
        await until_it_holds(path, 1)
        assert loaded(path).find(shown_key("ann")) is None


async def test_change_during_a_write_is_written_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_table, "RETRY_SECONDS", 3600.0)  # a retry after a failure would be too late
    path, keys = tmp_path / "keys.json", KeyTable()
    async with kept(path, keys):

        def write_and_change(path: Path, content: bytes, mode: int) -> None:
            if len(keys) == 1:
                keys.put(known("bob"))
            replace_file(path, content, mode)

        monkeypatch.setattr(key_table, "replace_file", write_and_change)
        keys.put(known("ann"))
        await until_it_holds(path, 2)


async def test_it_holds_no_keys_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path, keys = tmp_path / "keys.json", KeyTable()
    async with kept(path, keys):
        keys.put(known("ann"))
        await until_it_holds(path, 1)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)  # as an older release may have left it
    assert KeySnapshot(path, KeyTable()).load()
    assert path.stat().st_mode & 0o777 == 0o600
    assert shown_key("ann") not in path.read_text()
    assert "key_ann" in path.read_text()


async def test_an_empty_key_list_is_stored(tmp_path: Path) -> None:
    path, keys = tmp_path / "keys.json", KeyTable()
    async with kept(path, keys) as snapshot:
        keys.retain(())
        await snapshot.flush()
        assert loaded(path).loaded


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 2, "keys": []}', '{"version": 1}', '{"version":1,"keys":[{"id":"k"}]}']
)
def test_unusable_entries_are_skipped(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "keys.json").write_text(content)
    keys = KeyTable()
    assert not asyncio.run(_load(tmp_path / "keys.json", keys))
    assert not keys.loaded
    assert "cannot be used" in caplog.text


async def _load(path: Path, keys: KeyTable) -> bool:
    return KeySnapshot(path, keys).load()


async def test_full_disk_stops_no_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    keys = table()
    snapshot = KeySnapshot(tmp_path / "file" / "keys.json", keys)
    keys.put(known("ann"))
    await snapshot.flush()
    assert "cannot be written" in caplog.text
    assert keys.find(shown_key("ann"))


async def test_the_file_is_plain_json(tmp_path: Path) -> None:
    path, keys = tmp_path / "keys.json", KeyTable()
    snapshot = KeySnapshot(path, keys)
    keys.put(known("ann"))
    await snapshot.flush()
    content = json.loads(path.read_text())
    assert (content["version"], content["keys"][0]["scopes"]) == (1, ["inference"])
