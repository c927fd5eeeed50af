"""A service process with toy workers that answers each command; tests/residency/test_residency.py starts it.

`use ID`: a request that ends immediately: `used` or `refused CODE`. `hold ID`: one that continues: `held` or `refused
CODE`. `drop`: ends all held requests: `dropped`. The number in an id is the model's memory in MiB; the host has 1000.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
from allm.models.v1 import residency_service_pb2_grpc

from services.errors import AllmError
from services.models.descriptor import ModelDescriptor
from services.models.runtimes import RuntimeSpec
from services.residency.manager import ModelManager
from services.residency.memory.admission import Admission
from services.residency.memory.host_memory import HostMemory, ProcessMemory
from services.residency.memory.ledger import Ledger, LedgerSync, Pools
from services.residency.memory.monitor import Monitor
from services.residency.memory.readings import Readings
from services.residency.residency import Residency
from services.residency.servicer import ResidencyServicer
from services.worker.process import WorkerProcess
from tests.residency.small_host import RUNTIME, TOTAL, model, needed, residency_settings
from tests.worker.toy_worker import FromToy, Say, Stop

# Zero usage, so that only reservations count, independent of this machine's memory.
READINGS = Readings(
    host=lambda: HostMemory(total=TOTAL, used=0, source="a test"), devices=list, process=lambda _: ProcessMemory()
)


class Toy:
    """A toy worker as a resident."""

    def __init__(self, worker: WorkerProcess[FromToy]) -> None:
        self._worker = worker
        self.alive = True
        self.problem: AllmError | None = None
        self.peak_memory = 0

    @property
    def pid(self) -> int:
        return self._worker.pid

    async def close(self) -> None:
        self.alive = False
        await self._worker.close(ask=lambda: self._worker.send(Stop()))


async def load(descriptor: ModelDescriptor, _runtime: RuntimeSpec) -> Toy:
    worker: WorkerProcess[FromToy] = await WorkerProcess.start("tests.worker.toy_worker", FromToy, "toy", {})
    worker.send(Say("ready"))
    await worker.receive()
    return Toy(worker)


async def main(folder: Path, replica: str, patience: float) -> None:
    """Serves commands until the input ends. `patience`: seconds that a load waits for room."""
    settings = residency_settings(folder / "ledger")
    address = f"unix:{folder / replica}.sock"
    manager: ModelManager[Toy] = ModelManager(load)
    ledger = await Ledger.open(settings.folder, address, replica, Pools({}))
    ledger_sync = LedgerSync(manager, ledger, READINGS)
    admission = Admission(manager, ledger, ledger_sync, needed, settings, READINGS, replica, patience)
    manager.gate = admission
    residency = Residency(manager, ledger, Monitor(manager, ledger, ledger_sync, admission, settings, READINGS))
    server = grpc.aio.server()
    residency_service_pb2_grpc.add_ResidencyServiceServicer_to_server(ResidencyServicer(residency), server)
    server.add_insecure_port(address)
    await server.start()
    await residency.start()
    print("open", flush=True)
    await obey(manager)
    await server.stop(None)
    await manager.close()
    await residency.close()


async def obey(manager: ModelManager[Toy]) -> None:
    """Runs one command after the other."""
    async with AsyncExitStack() as held:
        while line := await asyncio.to_thread(sys.stdin.readline):
            command, *names = line.split()
            if command == "drop":
                await held.aclose()
                print("dropped", flush=True)
                continue
            try:
                if command == "hold":
                    await held.enter_async_context(manager.lease(model(names[0]), RUNTIME))
                else:
                    async with manager.lease(model(names[0]), RUNTIME):
                        pass
            except AllmError as problem:
                print("refused", problem.code, flush=True)
            else:
                print("held" if command == "hold" else "used", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
