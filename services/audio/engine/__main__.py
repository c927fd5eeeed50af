"""A worker process with one loaded model. The audio service starts it as `python -m services.audio.engine FD`.

Three threads: the main thread runs the batch loop; another prepares sound while steps run; a reader takes messages.
"""

from __future__ import annotations

import importlib
import queue

from services.audio.engine.loop import BatchLoop, LoopInbox
from services.audio.engine.messages import Load, ToWorker
from services.audio.engine.preparation import Preparation, PrepareInbox
from services.audio.engine.runtime import Loader
from services.worker.channel import BlockingChannel
from services.worker.main import Serving, importing, run_worker, start_thread
from services.worker.messages import EngineError, LoadingProgress

# Runtime name to module and loader class.
RUNTIMES = {
    "faster_whisper": ("services.audio.engine.runtimes.faster_whisper", "FasterWhisper"),
    "whisper": ("services.audio.engine.runtimes.whisper", "OpenAIWhisper"),
}


def main() -> None:
    """Loads the model that the first message names and serves it until stopped."""
    run_worker(ToWorker, Load, _load)


def _load(load: Load, channel: BlockingChannel[ToWorker]) -> Serving:
    runtime = _loader(load.runtime)(load.options, LoadingProgress(channel))
    to_preparation: PrepareInbox = queue.SimpleQueue()
    to_loop: LoopInbox = queue.SimpleQueue()
    preparation = Preparation(runtime, to_preparation, to_loop.put, channel.send)
    loop = BatchLoop(runtime, to_loop, to_preparation.put, channel.send, load.options.whole_windows)

    def serve() -> None:
        start_thread("preparation", preparation.run)
        loop.run()

    return Serving(runtime.ready, to_preparation.put, serve)


def _loader(runtime: str) -> Loader:
    if runtime not in RUNTIMES:
        raise EngineError("UNSUPPORTED", f"unknown speech runtime {runtime!r}; known are {', '.join(RUNTIMES)}")
    module, name = RUNTIMES[runtime]
    with importing(runtime):
        loader: Loader = getattr(importlib.import_module(module), name)
    return loader


if __name__ == "__main__":
    main()
