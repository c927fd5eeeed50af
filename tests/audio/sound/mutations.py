"""Damages files of every format and decodes them in this process: `mutations COUNT [NAME...]`, COUNT of each format.

test_hostile_files.py runs it as a separate process, because a file may crash it. Prints a line for each format: its
name, the number of files decoded at least in part, and the number refused. Any other exception is a bug in allm.
"""

from __future__ import annotations

import io
import random
import sys

from services.audio.sound import container
from services.audio.sound.__main__ import CPU_SECONDS, MEMORY_BYTES
from services.audio.sound.mixer import Mixer
from services.sandbox import limits
from services.sandbox.child import Refusal
from tests.audio.sound.sound_files import FILES, encoded


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Returns the file with a few bytes changed, removed or inserted, more often near its start."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = min(int(rng.expovariate(1 / rng.choice([40, 400, len(data)]))), len(changed) - 1)
        kind = rng.random()
        if kind < 0.7:
            changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif kind < 0.85:
            del changed[at : at + rng.randint(1, 64)]
        else:
            changed[at:at] = rng.randbytes(rng.randint(1, 64))
    return bytes(changed)


def main() -> None:
    """Runs the named formats, or all."""
    names = sys.argv[2:] or list(FILES)
    # A damaged ogg page is lost as a whole, so the file needs several pages.
    files = {name: encoded(name, 4.0 if name in ("ogg", "opus") else 0.5) for name in names}
    limits.confine(MEMORY_BYTES)
    for name, data in files.items():
        rng = random.Random(name)  # noqa: S311 (the same files each time)
        counts = {True: 0, False: 0}
        for _ in range(int(sys.argv[1])):
            limits.allow_cpu(CPU_SECONDS)
            mixer = Mixer(lambda _: None, 60.0)
            try:
                container.decode(io.BufferedReader(io.BytesIO(mutated(data, rng))), mixer)
                counts[True] += 1
            except (Refusal, MemoryError):
                counts[False] += 1
        print(name, counts[True], counts[False], flush=True)


if __name__ == "__main__":
    main()
