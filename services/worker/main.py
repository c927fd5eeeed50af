"""The main program of a worker process: it loads a model, and a loop then serves the model's requests.

The main thread runs the loop; a reader thread takes messages while steps run. The reader also watches the service: when
the service dies, its end of the socket closes, and the worker ends immediately, whatever native code is running.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from services.worker.channel import BlockingChannel, ChannelClosed
from services.worker.messages import EngineError, LoadFailed, Stop

L = TypeVar("L")

log = logging.getLogger("worker")


@dataclass(frozen=True, slots=True)
class Serving:
    """A loaded model and its loop."""

    ready: object  # message to the service
    take: Callable[[Any], None]  # takes a message of the service, in the reader thread
    run: Callable[[], None]  # serves in the main thread


def run_worker(messages: Any, first: type[L], load: Callable[[L, BlockingChannel[Any]], Serving]) -> None:
    """Loads the model that the first message names and serves it until stopped.

    Args:
        messages: union of the messages that the service sends.
        first: class of the first message.
        load: loads the model. May raise EngineError, which is sent to the service.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    faulthandler.enable()  # a crash of native code leaves the lines that called it in the log, and no data
    channel: BlockingChannel[Any] = BlockingChannel(socket.socket(fileno=int(sys.argv[1])), messages)
    message = channel.receive()
    if not isinstance(message, first):
        raise SystemExit(f"the first message must be {first.__name__}, not {type(message).__name__}")
    takes: queue.SimpleQueue[Callable[[Any], None]] = queue.SimpleQueue()
    start_thread("reader", lambda: _read(channel, takes))
    try:
        serving = load(message, channel)
    except EngineError as error:
        channel.send(LoadFailed(error.code, error.message))
        return
    takes.put(serving.take)
    with contextlib.suppress(ChannelClosed):
        channel.send(serving.ready)
        serving.run()
    # Threads of native libraries may still run; there is no reason to wait for them.
    os._exit(0)


def start_thread(name: str, target: Callable[[], None], stack_bytes: int = 0) -> None:
    """Starts a thread whose failure ends the worker: the service then reports it and starts another worker.

    `stack_bytes`: the size of its stack; 0: the system's.
    """

    def guarded() -> None:
        try:
            target()
        except ChannelClosed:
            os._exit(0)
        except BaseException:
            log.exception("the thread %s failed", name)
            os._exit(1)

    threading.stack_size(stack_bytes)
    threading.Thread(target=guarded, name=name, daemon=True).start()
    threading.stack_size(0)


@contextlib.contextmanager
def importing(runtime: str) -> Iterator[None]:
    """Imports a runtime in its block. Raises EngineError (UNSUPPORTED) if a package is missing."""
    gc.disable()  # imports leave no garbage, and the search for it takes a fifth of torch's time
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"the runtime {runtime} cannot be used here: the Python package {error.name!r} is not installed"
        raise EngineError("UNSUPPORTED", message) from error
    finally:
        gc.freeze()  # later searches skip what was imported: it stays
        gc.enable()


def _read(channel: BlockingChannel[Any], takes: queue.SimpleQueue[Callable[[Any], None]]) -> None:
    """Receives messages until the service ends. The service sends requests only after the ready message."""
    take: Callable[[Any], None] | None = None
    while True:
        message = channel.receive()
        if isinstance(message, Stop):
            os._exit(0)
        take = take or takes.get()
        take(message)
