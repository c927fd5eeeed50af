"""The demo model's safetensors, unpacked while the stack runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from services.cli.serve.unpack import unpack_demo
from services.models.demo import safetensors_demo as module
from services.models.demo.safetensors_demo import safetensors_demo
from services.models.demo.text_demo import DemoError

PATIENCE_SECONDS = 60


async def test_what_is_there_is_taken_without_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    safetensors_demo(tmp_path).mkdir(parents=True)
    assert await unpack_demo(tmp_path, said.append) == safetensors_demo(tmp_path)
    assert said == []


async def test_without_the_extras_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "is_installed", lambda _: False)
    said: list[str] = []
    assert await unpack_demo(tmp_path, said.append) is None
    assert said == []


async def test_what_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forged = tmp_path / "forged.gguf"
    forged.write_bytes(b"GGUF")
    monkeypatch.setattr(module, "bundled_model", lambda: forged)
    said: list[str] = []
    with pytest.raises(DemoError, match=f"cannot be made: {forged} is not the file it should be"):
        await unpack_demo(tmp_path, said.append)
    assert len(said) == 1


async def test_a_stop_ends_the_work_and_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    folder = safetensors_demo(tmp_path)
    before = set(psutil.Process().children())
    task = asyncio.create_task(unpack_demo(tmp_path, lambda _: None))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not folder.with_name("partial").exists():
            assert not task.done()
            await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(psutil.Process().children()) == before
    assert not folder.exists()
