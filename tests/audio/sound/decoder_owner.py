"""A process that owns two decoders, one of them decoding a file; it prints their ids and waits to be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from services.audio.sound.decoders import SoundDecoders
from services.audio.sound.source import LiveFeed, RawSound
from tests.audio.sound.pool import decoder_processes


async def main() -> None:
    """Runs until killed."""
    decoders = SoundDecoders(decoders=2, folder=Path(sys.argv[1]), max_seconds=60, queue=0, stall_seconds=60)
    await decoders.start()
    async with decoders.open(LiveFeed(), RawSound(8000)):
        print(*(process.pid for process in decoder_processes()), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
