"""Faults of the machine and careless operators: processes, clocks and disks that stop, broken models."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from bench.attack.sound import silence
from bench.attack.target import CHAT, IMAGES, SPEECH, CannotAttack, Target
from bench.attack.text import HELLO, outcome
from services.models.demo.text_demo import bundled_model

DAY = 86_400
READ_SECONDS = 5.0  # in which the catalog reads the models file twice
THAW_SECONDS = 5.0  # after which a disk is thawed even if this process is killed
TEMPLATES = {
    "loops": "{% for a in range(99999999) %}{% for b in range(99999999) %}{% endfor %}{% endfor %}",
    "grows": "{% set x = namespace(t='a' * 999) %}{% for i in range(99) %}{% set x.t = x.t * 2 %}{% endfor %}{{ x.t }}",
    "calls itself": "{% macro a(n) %}{{ a(n + 1) }}{% endmacro %}{{ a(0) }}",
}


async def hung(target: Target, name: str) -> Counter[str]:
    """Stops a process, and waits until another one is in its place."""
    found = next(
        each for each in psutil.Process(target.pid).children(recursive=True) if name in " ".join(each.cmdline())
    )
    os.kill(found.pid, signal.SIGSTOP)
    while psutil.pid_exists(found.pid):  # noqa: ASYNC110 (a process of another parent has no event)
        await asyncio.sleep(0.1)
    return Counter(replaced=1)


async def clock_jumps(target: Target) -> Counter[str]:
    """Sets the clock of all processes a day ahead, then a day back, while a response is made in the background."""
    found: Counter[str] = Counter()
    clock = target.folder / "clock"
    body = {"model": CHAT, "input": "Count to a thousand.", "background": True, "max_output_tokens": 150}
    async with target.client(target.attacker) as client:
        for seconds in (DAY, -DAY, 0):
            made = (await client.post("/v1/responses", json=body)).raise_for_status().json()
            await asyncio.to_thread(_overwrite, clock, struct.pack("d", seconds))
            async with asyncio.timeout(300):
                while made["status"] in {"queued", "in_progress"}:
                    await asyncio.sleep(target.seconds / 20)
                    made = (await client.get(f"/v1/responses/{made['id']}")).raise_for_status().json()
            found[f"{made['status']} with the clock {seconds:+d} s"] += 1
            found += await _writes(client)
    return found


async def no_inodes(target: Target) -> Counter[str]:
    """Takes all inodes of the disk, and gives them back."""
    taken = target.home / "taken"
    taken.mkdir()
    with suppress(OSError):
        for number in range(10_000_000):
            (taken / str(number)).touch()
    async with target.client(target.attacker) as client:
        found = Counter({f"without inodes: {what}": count for what, count in (await _writes(client)).items()})
        await asyncio.sleep(target.seconds)
        for path in taken.iterdir():
            path.unlink()
        return found + await _writes(client)


async def frozen_disk(target: Target) -> Counter[str]:
    """Lets every write to the disk wait."""
    disk = str(target.home.parent)
    thaw = f"sleep {target.seconds + THAW_SECONDS}; /sbin/fsfreeze --unfreeze {disk}"
    guard = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", thaw, start_new_session=True, stderr=asyncio.subprocess.DEVNULL
    )
    await asyncio.to_thread(subprocess.run, ["/sbin/fsfreeze", "--freeze", disk], check=True)
    try:
        async with target.client(target.attacker) as client:
            writing = asyncio.create_task(_writes(client))
            await asyncio.sleep(target.seconds)
            await asyncio.to_thread(subprocess.run, ["/sbin/fsfreeze", "--unfreeze", disk], check=True)
            return await writing
    finally:
        await guard.wait()


async def cut_models_file(target: Target) -> Counter[str]:
    """Cuts the models file at many places, each for as long as the catalog needs to apply it."""
    path = Path(target.environment["ALLM_MODELS_FILE"])
    whole = await asyncio.to_thread(path.read_bytes)
    cuts = max(4, int(target.seconds / READ_SECONDS))
    found: Counter[str] = Counter()
    for number in range(cuts):
        await asyncio.to_thread(path.write_bytes, whole[: len(whole) * number // cuts])
        await asyncio.sleep(READ_SECONDS)
        listed = await asyncio.to_thread(target.command, "models", "list")
        found[f"{len(listed['models'])} models"] += 1
        found["cuts reported"] += bool(listed["models_file"]["problems"])
    await asyncio.to_thread(path.write_bytes, whole)
    return found


async def templates(target: Target, requests: int) -> Counter[str]:
    """Registers models with hostile chat templates, and asks each for several chats at once."""
    model = bundled_model()
    if model is None:
        raise CannotAttack("the extra `demo` is not installed")
    for number, template in enumerate(TEMPLATES.values()):
        path = target.home / "models" / f"hostile-{number}.gguf"
        words = ["--chat-template", template, "--force", str(model), str(path)]
        make = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", *words]
        await asyncio.to_thread(subprocess.run, make, check=True, capture_output=True)
        add = ("models", "add", f"hostile-{number}", path.as_uri(), "--format", "gguf")
        await asyncio.to_thread(target.command, *add)
    async with target.client(target.attacker) as client:

        async def ask(number: int, name: str) -> str:
            body = {"model": f"hostile-{number}", "messages": HELLO, "max_tokens": 1}
            return f"{name}: {await outcome(client.post('/v1/chat/completions', json=body))}"

        calls = [ask(*each) for each in enumerate(TEMPLATES) for _ in range(requests)]
        return Counter(await asyncio.gather(*calls))


def _overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:  # the same file, which others have mapped
        file.write(data)


async def _writes(client: httpx.AsyncClient) -> Counter[str]:
    """Makes a call of every kind that needs the disk."""
    sound = {"file": ("silence.flac", silence("flac", "flac", 1))}
    picture = {"model": IMAGES, "prompt": "a red circle", "response_format": "url", "size": "64x64"}
    calls = {
        "stored": client.post("/v1/responses", json={"model": CHAT, "input": "Hello", "max_output_tokens": 1}),
        "sound": client.post("/v1/audio/transcriptions", data={"model": SPEECH}, files=sound),
        "picture": client.post("/v1/images/generations", json=picture),
    }
    outcomes = await asyncio.gather(*(outcome(call) for call in calls.values()))
    return Counter(f"{name} {what}" for name, what in zip(calls, outcomes, strict=True))
