"""A worker process with one loaded model. The audio service starts it as `python -m services.audio.engine FD`.

Three threads: the main thread runs the batch loop; another prepares sound while steps run; a reader takes messages and
watches the service: when the service is gone, its end of the socket closes, and the worker exits immediately, whatever
native code is running.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable

from services.audio.engine.loop import BatchLoop, LoopInbox
from services.audio.engine.messages import Failed, Load, Stop, ToWorker
from services.audio.engine.preparation import Preparation, PrepareInbox
from services.audio.engine.runtime import Loader
from services.worker.channel import BlockingChannel, ChannelClosed
from services.worker.messages import EngineError, LoadingProgress

# Runtime name to module and loader class.
RUNTIMES = {
    "faster_whisper": ("services.audio.engine.runtimes.faster_whisper", "FasterWhisper"),
    "whisper": ("services.audio.engine.runtimes.whisper", "OpenAIWhisper"),
}

log = logging.getLogger("worker")


def main() -> None:
    """Loads the model that the first message names and serves until stopped."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    channel: BlockingChannel[ToWorker] = BlockingChannel(socket.socket(fileno=int(sys.argv[1])), ToWorker)
    load = channel.receive()
    if not isinstance(load, Load):
        raise SystemExit(f"the first message must be Load, not {type(load).__name__}")
    to_preparation: PrepareInbox = queue.SimpleQueue()
    to_loop: LoopInbox = queue.SimpleQueue()
    _start("reader", lambda: _read(channel, to_preparation))
    try:
        runtime = _loader(load.runtime)(load.options, LoadingProgress(channel))
    except EngineError as error:
        channel.send(Failed(error.code, error.message))
        return
    channel.send(runtime.ready)
    _start("preparation", Preparation(runtime, to_preparation, to_loop.put, channel.send).run)
    BatchLoop(runtime, to_loop, to_preparation.put, channel.send, load.options.whole_windows).run()
    # Threads of native libraries may still run; there is no reason to wait for them.
    os._exit(0)


def _loader(runtime: str) -> Loader:
    if runtime not in RUNTIMES:
        raise EngineError(
            "UNSUPPORTED", f"no runtime for speech is called {runtime!r}: there are {', '.join(RUNTIMES)}"
        )
    module, name = RUNTIMES[runtime]
    try:
        loader: Loader = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        message = f"the runtime {runtime} cannot be used here: the Python package {error.name!r} is not installed"
        raise EngineError("UNSUPPORTED", message) from error
    return loader


def _start(name: str, run: Callable[[], None]) -> None:
    """Starts a thread whose failure ends the worker: the service then reports it and starts another worker."""

    def guarded() -> None:
        try:
            run()
        except ChannelClosed:
            os._exit(0)
        except BaseException:
            log.exception("the thread %s failed", name)
            os._exit(1)

    threading.Thread(target=guarded, name=name, daemon=True).start()


def _read(channel: BlockingChannel[ToWorker], inbox: PrepareInbox) -> None:
    """Forwards messages while the service lives; the service sends requests only after Ready."""
    while True:
        message = channel.receive()
        if isinstance(message, Stop):
            os._exit(0)
        elif not isinstance(message, Load):
            inbox.put(message)


if __name__ == "__main__":
    main()
