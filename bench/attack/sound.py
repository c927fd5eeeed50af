"""Sound files that last for hours, or say so."""

from __future__ import annotations

import asyncio
import io
import time
from collections import Counter

import httpx

from bench.attack.target import SPEECH, Target
from bench.attack.text import outcome

PIECE_SECONDS = 60
MOST_PIECES = 20 * 60
MOST_BYTES = 25_000_000  # below ALLM_MAX_AUDIO_BYTES


def silence(codec: str, container: str, seconds: int, rate: int = 48_000) -> bytes:
    """Returns encoded stereo silence."""
    import av  # noqa: PLC0415 (slow to import)

    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout="stereo", options={"strict": "experimental"})
        assert isinstance(stream, av.AudioStream)  # noqa: S101 (for the type checker)
        for number in range(seconds):
            frame = av.AudioFrame("fltp" if codec == "vorbis" else "s16", "stereo", rate)
            frame.sample_rate, frame.pts = rate, rate * number
            for plane in frame.planes:
                plane.update(bytes(plane.buffer_size))
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def bombs() -> dict[str, bytes]:
    """Returns hostile files by name: chains of 4 to 20 hours, and files that claim centuries."""
    found = {}
    for codec in ("libopus", "vorbis", "flac"):
        piece = silence(codec, "ogg", PIECE_SECONDS)
        found[f"{codec}, hours"] = piece * min(MOST_PIECES, MOST_BYTES // len(piece))  # Ogg files may be chained
        last = piece.rindex(b"OggS")
        claim = (2**62).to_bytes(8, "little")
        found[f"{codec}, claims centuries"] = piece[: last + 6] + claim + piece[last + 14 :]
    flac = bytearray(silence("flac", "flac", 1))
    flac[21] |= 0x0F  # STREAMINFO's 36 bits of the number of samples (RFC 9639, section 8.2)
    flac[22:26] = b"\xff" * 4
    found["flac, claims 16 days"] = bytes(flac)
    return found


async def sound_bombs(target: Target, rounds: int) -> Counter[str]:
    """Sends all of `bombs` at once to be transcribed, `rounds` times, and hangs up after the target's time.

    A bystander's short sounds are transcribed meanwhile, and their longest wait is counted, too.
    """
    files = await asyncio.to_thread(bombs)
    short = await asyncio.to_thread(silence, "flac", "flac", 1)
    async with target.client(target.attacker) as client, target.client(target.bystander) as other:
        calls = [asyncio.create_task(_send(client, name, data)) for _ in range(rounds) for name, data in files.items()]
        ended = asyncio.create_task(asyncio.wait(calls, timeout=target.seconds))
        longest, answers = 0.0, []
        while not ended.done():
            began = time.monotonic()
            answers.append(f"a bystander's sound: {await _send(other, 'short', short)}")
            longest = max(longest, time.monotonic() - began)
        outcomes = [call.result() if call.done() else "no end yet" for call in calls]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    return Counter([*outcomes, *answers, f"a bystander's sound took at most {longest:.1f} s"])


async def _send(client: httpx.AsyncClient, name: str, data: bytes) -> str:
    files = {"file": (f"{name}.ogg", data)}
    call = client.post("/v1/audio/transcriptions", data={"model": SPEECH}, files=files)
    return f"{name}: {await outcome(call)}"
