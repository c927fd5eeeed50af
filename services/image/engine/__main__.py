"""A worker process with one loaded model. The image service starts it as `python -m services.image.engine FD`.

Two threads: this one runs the batch loop; the reader receives messages and checks requests, so that a request that does
not fit is refused immediately, however long a batch takes.
"""

from __future__ import annotations

import importlib
import queue

from services.image.engine.limits import check
from services.image.engine.loop import BatchLoop, LoopInbox
from services.image.engine.messages import Accepted, Generate, Load, ToWorker
from services.image.engine.runtime import Loader
from services.worker.channel import BlockingChannel
from services.worker.main import Serving, importing, run_worker
from services.worker.messages import EngineError, LoadingProgress

# Runtime name -> module, and the class that loads a model.
RUNTIMES = {
    "diffusers": ("services.image.engine.runtimes.diffusers.engine", "DiffusersEngine"),
}


def main() -> None:
    """Loads the model that the first message names and serves it until stopped."""
    run_worker(ToWorker, Load, _load)


def _load(load: Load, channel: BlockingChannel[ToWorker]) -> Serving:
    runtime = _loader(load.runtime)(load.options, LoadingProgress(channel))
    inbox: LoopInbox = queue.SimpleQueue()

    def take(message: ToWorker) -> None:
        if isinstance(message, Generate):
            try:
                tokens = check(message, runtime)
            except EngineError as error:
                channel.send(error.refusal(message.request))
                return
            channel.send(Accepted(message.request, tokens))
        if not isinstance(message, Load):
            inbox.put(message)

    return Serving(runtime.ready, take, BatchLoop(runtime, inbox, channel.send).run)


def _loader(runtime: str) -> Loader:
    if runtime not in RUNTIMES:
        raise EngineError("UNSUPPORTED", f"unknown image runtime {runtime!r}; known are {', '.join(RUNTIMES)}")
    module, name = RUNTIMES[runtime]
    with importing(runtime):
        loader: Loader = getattr(importlib.import_module(module), name)
    return loader


if __name__ == "__main__":
    main()
