"""A process with its own ledger that answers each command with a line; tests/residency/memory/test_ledger.py starts it.

`reserve BYTES OF`: reserves BYTES of a host with OF bytes: `reserved` or `full`. `release`: releases them:
`released`. `hold`: keeps a transaction open forever: `held`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from copy import copy
from functools import partial
from pathlib import Path

from services.residency.memory.ledger import NAME, Ledger, Pools
from services.residency.memory.memory_estimate import HOST, MemoryEstimate
from services.residency.memory.readings import Capacity, Room
from services.residency.memory.reservation import Full, Reservation, ResidentKey


async def main(folder: Path, replica: str) -> None:
    """Serves commands until the input ends."""
    ledger = await Ledger.open(folder, f"unix:/{replica}", replica, Pools({}))
    held: list[Reservation | sqlite3.Connection] = []
    print("open", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command, *numbers = line.split()
        if command == "reserve":
            count, size = map(int, numbers)
            room = Capacity({HOST: Room(limit=size, free=size)})
            key = ResidentKey(replica, 1, "toy")
            try:
                held.append(await ledger.reserve(key, MemoryEstimate({HOST: count}), partial(copy, room)))
                print("reserved", flush=True)
            except Full:
                print("full", flush=True)
        elif command == "release":
            await ledger.release(held.pop())
            print("released", flush=True)
        else:
            held.append(connection := sqlite3.connect(folder / NAME, isolation_level=None))
            connection.execute("BEGIN IMMEDIATE")
            print("held", flush=True)
    await ledger.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
