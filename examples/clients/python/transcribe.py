"""Transcribes an audio file over gRPC, while the audio is being sent.

    make transcribe FILE=speech.wav     # or: PYTHONPATH=build python transcribe.py FILE [address [model]]

The modules below `allm` are generated from the .proto files by `make`. docs/grpc-clients.md explains it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import grpc
from allm.audio.v1 import transcription_service_pb2, transcription_service_pb2_grpc

SECONDS = 600  # the deadline of the call: without one, it may wait forever
PIECE_BYTES = 64 * 1024


def requests(file: BinaryIO, model: str) -> Iterator[transcription_service_pb2.StreamTranscribeRequest]:
    """Yields the configuration, then the audio as it arrives. For a microphone, `raw` describes the samples' format.

    The end of the generator ends the sound, not the answers.
    """
    yield transcription_service_pb2.StreamTranscribeRequest(
        config=transcription_service_pb2.TranscriptionConfig(model=model)
    )
    while piece := file.read(PIECE_BYTES):
        yield transcription_service_pb2.StreamTranscribeRequest(audio=piece)


def transcribe(
    transcriptions: transcription_service_pb2_grpc.TranscriptionServiceStub, file: BinaryIO, model: str
) -> None:
    """Prints the text as soon as it is known."""
    for reply in transcriptions.StreamTranscribe(requests(file, model), timeout=SECONDS):
        # A reply holds exactly one event; transcription_service.proto lists them, in their order.
        event = reply.WhichOneof("event")
        if event == "partial":  # of an unfinished phrase: the next partial or segment replaces it
            print(f"...{reply.partial.text}")
        elif event == "segment":
            print(f"{reply.segment.start:.2f}-{reply.segment.end:.2f}{reply.segment.text}", flush=True)
        elif event == "finished":
            print(f"({reply.finished.duration:.1f} s, {reply.finished.tokens} tokens)")


def main(path: str, address: str = "127.0.0.1:8080", model: str = "whisper-tiny.en") -> None:
    """Transcribes one file."""
    with Path(path).open("rb") as file, grpc.insecure_channel(address) as channel:
        transcribe(transcription_service_pb2_grpc.TranscriptionServiceStub(channel), file, model)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: transcribe.py FILE [address [model]]")
    try:
        main(*sys.argv[1:])
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name}: {error.details()}")
    except OSError as error:
        sys.exit(str(error))
