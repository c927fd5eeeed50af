"""The permissions of a running decoder process."""

from __future__ import annotations

import psutil
import pytest

from services.audio.sound.__main__ import MEMORY_BYTES
from tests.audio.sound.pool import Pool, decoder_processes

on_modules_loop = pytest.mark.asyncio(loop_scope="module")


@on_modules_loop
async def test_decoder_is_confined_and_has_one_thread_and_its_watcher(pool: Pool) -> None:
    for process in decoder_processes():
        limits = {kind: process.rlimit(kind) for kind in (psutil.RLIMIT_CORE, psutil.RLIMIT_FSIZE, psutil.RLIMIT_NPROC)}
        assert set(limits.values()) == {(0, 0)}
        assert process.rlimit(psutil.RLIMIT_NOFILE)[0] == 1
        assert process.rlimit(psutil.RLIMIT_AS)[1] < MEMORY_BYTES + 400 * 2**20
        assert process.num_threads() == 2


@on_modules_loop
async def test_a_decoder_has_no_more_threads_with_a_file(pool: Pool) -> None:
    from tests.audio.sound.sound_files import encoded

    async with pool.open(encoded("flac", 120.0)) as sound:
        assert await sound.read()
        assert {process.num_threads() for process in decoder_processes()} == {2}
