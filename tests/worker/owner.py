"""A process that owns a toy worker, prints its process id, and waits: tests/worker/test_process.py kills it."""

from __future__ import annotations

import asyncio

from services.worker.process import WorkerProcess
from tests.worker.toy_worker import FromToy, Say


async def main() -> None:
    """Starts the worker and waits until killed."""
    worker: WorkerProcess[FromToy] = await WorkerProcess.start("tests.worker.toy_worker", FromToy, "toy", {})
    worker.send(Say("ready"))
    await worker.receive()
    print(worker.pid, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
