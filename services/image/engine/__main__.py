"""A worker process with one loaded model. The image service starts it as `python -m services.image.engine FD`.

Two threads: this one runs the batch loop; the reader receives messages and checks requests, so that a request that does
not fit is refused immediately, however long a batch takes. The reader is the watcher as well: when the service is gone,
its end of the socket closes, and the worker exits immediately, whatever native code is running.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import queue
import socket
import sys
import threading

from services.image.engine.limits import check
from services.image.engine.loop import BatchLoop, LoopInbox
from services.image.engine.messages import Accepted, Failed, Generate, Load, Refused, Stop, ToWorker
from services.image.engine.runtime import Loader, Runtime
from services.worker.channel import BlockingChannel, ChannelClosed
from services.worker.messages import EngineError, LoadingProgress

# Runtime name -> module, and the class that loads a model.
RUNTIMES = {
    "diffusers": ("services.image.engine.runtimes.diffusers.engine", "DiffusersEngine"),
}

log = logging.getLogger("worker")


def main() -> None:
    """Loads the model named by the first message and serves until stopped."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    channel: BlockingChannel[ToWorker] = BlockingChannel(socket.socket(fileno=int(sys.argv[1])), ToWorker)
    load = channel.receive()
    if not isinstance(load, Load):
        raise SystemExit(f"the first message must be Load, not {type(load).__name__}")
    inbox: LoopInbox = queue.SimpleQueue()
    reader = _Reader(channel, inbox)
    threading.Thread(target=reader.run, name="reader", daemon=True).start()
    try:
        runtime = _loader(load.runtime)(load.options, LoadingProgress(channel))
    except EngineError as error:
        channel.send(Failed(error.code, error.message))
        return
    reader.runtime = runtime
    channel.send(runtime.ready)
    with contextlib.suppress(ChannelClosed):
        BatchLoop(runtime, inbox, channel.send).run()
    # Does not wait for threads of native libraries, which may still run.
    os._exit(0)


def _loader(runtime: str) -> Loader:
    if runtime not in RUNTIMES:
        raise EngineError(
            "UNSUPPORTED", f"no runtime for images is called {runtime!r}: there are {', '.join(RUNTIMES)}"
        )
    module, name = RUNTIMES[runtime]
    try:
        loader: Loader = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        message = f"the runtime {runtime} cannot be used here: the Python package {error.name!r} is not installed"
        raise EngineError("UNSUPPORTED", message) from error
    return loader


class _Reader:
    """The reader thread. The service sends requests only after Ready."""

    def __init__(self, channel: BlockingChannel[ToWorker], inbox: LoopInbox) -> None:
        self._channel = channel
        self._inbox = inbox
        self.runtime: Runtime | None = None  # None until the model is loaded

    def run(self) -> None:
        """Receives messages until the service is gone. A failure ends the worker; the service then starts another."""
        try:
            while True:
                self._take(self._channel.receive())
        except ChannelClosed:
            os._exit(0)
        except BaseException:
            log.exception("the thread reader failed")
            os._exit(1)

    def _take(self, message: ToWorker) -> None:
        if isinstance(message, Stop):
            os._exit(0)
        elif isinstance(message, Generate):
            if self.runtime is None:
                return
            try:
                tokens = check(message, self.runtime)
            except EngineError as error:
                self._channel.send(
                    Refused(request=message.request, code=error.code, message=error.message, param=error.param)
                )
                return
            self._channel.send(Accepted(message.request, tokens))
            self._inbox.put(message)
        elif not isinstance(message, Load):
            self._inbox.put(message)


if __name__ == "__main__":
    main()
