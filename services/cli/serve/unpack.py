"""Makes the demo model's safetensors while the other models already serve."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from services.cli.serve.process import LAUNCHER
from services.models.demo.safetensors_demo import SAFETENSORS_DEMO_ID, safetensors_demo, unpacking, unpacking_failed

NICE = 10  # a request may be waiting for another model's first answer


async def unpack_demo(models_dir: Path, say: Callable[[str], None]) -> Path | None:
    """Returns the model's folder, making it if necessary; None if an extra that it needs is not installed.

    If the task is cancelled or this process ends, the work stops and leaves no folder that looks complete.

    Raises:
        DemoError: it cannot be made.
    """
    command = unpacking(models_dir)
    if command is None:
        return None
    folder = safetensors_demo(models_dir)
    if folder.exists():
        return folder
    say(f"preparing {SAFETENSORS_DEMO_ID} meanwhile: unpacking to safetensors (270 MB, once)")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        LAUNCHER,
        str(os.getpid()),
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # we handle a terminal's Ctrl-C
    )
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
    try:
        _, output = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise unpacking_failed(output.decode(errors="replace"))
    return folder
