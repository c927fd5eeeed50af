"""The batch loop of an image worker: images that differ only in prompt and seed are computed together.

A batch runs from its first step to its last. The loop receives messages between two steps, so that a cancelled request
costs at most the current step. A batch takes the images that are waiting when it starts; it waits only briefly for more
(`ReturningCallers`). The service enforces time limits.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from services.image.engine.messages import Counters, Draft, Finished, Generate, Parameters, Picture, Progress, Stepped
from services.image.engine.runtime import Preview, Runtime
from services.worker.loop import DEADLINE_PASSED, Turns, WorkerLoop, expired
from services.worker.messages import Cancel, EngineError, Phase, Stop

SHARE = 0.1  # longest wait, as a share of the previous batch's time
MOST_SECONDS = 1.0
BEAT_SECONDS = 1.0  # between two heartbeats while no steps run
LoopInbox = queue.SimpleQueue[Generate | Cancel | Stop]


class ReturningCallers:
    """Counts the callers of the previous batch that have not come back yet. A batch never waits for a lone caller.

    Callers often send the next request once they have their images. Without the wait, the first of four to come back
    would get a batch of its own and the other three the next one: two batches instead of one.
    """

    def __init__(self) -> None:
        self._missing = 0
        self._until = 0.0

    def batch_ended(self, callers: int, seconds: float) -> None:
        """Records the end of a batch: the number of requests it finished and the seconds it took."""
        self._missing = callers
        self._until = time.monotonic() + min(SHARE * seconds, MOST_SECONDS)

    def request_arrived(self) -> None:
        """Counts a new request."""
        self._missing -= 1

    @property
    def seconds(self) -> float:
        """Seconds that the next batch may still wait; 0.0 if all callers are back or the time is up."""
        return max(0.0, self._until - time.monotonic()) if self._missing > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Row:
    """An image in a batch."""

    generation: Generation
    index: int  # in its request


class BatchLoop(WorkerLoop[Generate | Cancel]):
    """Runs the checked requests of one loaded model. `send` sends a message to the service."""

    def __init__(self, runtime: Runtime, inbox: LoopInbox, send: Callable[[object], None]) -> None:
        super().__init__(inbox, send)
        self._runtime = runtime
        self._images = runtime.ready.batch_images  # batch limit, in images of the model's default size
        self._generations: dict[int, Generation] = {}
        self._turns = Turns()
        self._returning = ReturningCallers()
        self._rows: list[_Row] = []  # of the running batch
        self._steps = 0
        self._reported: Counters | None = None
        self._beaten = 0.0

    def _is_idle(self) -> bool:
        return not self._generations

    def _advance(self) -> None:
        self._gather()
        self._expire()
        if not self._stopped and self._generations:
            self._compute()
        self._report()

    # --- incoming messages

    def _take(self, message: Generate | Cancel) -> None:
        if isinstance(message, Generate):
            self._generations[message.request] = Generation(message)
            self._returning.request_arrived()
        elif generation := self._generations.get(message.request):
            self._forget(generation)

    def _gather(self) -> None:
        """Waits for the last batch's callers while images are waiting and the batch has room for more."""
        while not self._stopped and self._generations and (seconds := self._returning.seconds):
            if sum(len(one.waiting) for one in self._generations.values()) >= self._images:
                return
            self._take_messages(seconds)

    def _expire(self) -> None:
        """Refuses the requests whose deadlines have passed."""
        for generation in expired(self._generations.values()):
            self._forget(generation)
            self._refuse(generation.request, DEADLINE_PASSED)

    def _forget(self, generation: Generation) -> None:
        generation.gone = True
        del self._generations[generation.request]
        self._turns.forget(generation, self._generations.values())

    # --- a batch

    def _choose(self) -> list[_Row]:
        """Chooses the next batch: the next image in turn, then images of the same kind, also in turn."""
        waiting = [one for one in self._generations.values() if one.waiting]
        first = self._turns.next(waiting)
        if first is None:
            return []
        rows = [_Row(first, first.start())]
        if first.alone:
            return rows
        companions = [one for one in waiting if one.kind == first.kind and not one.alone]
        room = self._room(first.parameters)
        while len(rows) < room and (chosen := self._turns.next(one for one in companions if one.waiting)):
            rows.append(_Row(chosen, chosen.start()))
        return rows

    def _room(self, parameters: Parameters) -> int:
        """Returns the batch limit for a size: larger images mean fewer of them."""
        own = self._runtime.ready.sizes.width * self._runtime.ready.sizes.height
        return max(1, min(self._images, self._images * own // (parameters.width * parameters.height)))

    def _compute(self) -> None:
        self._rows = rows = self._choose()
        if not rows:
            return
        parameters = rows[0].generation.parameters
        drafts = [row.generation.draft(row.index) for row in rows]
        started = time.monotonic()
        self._enter("steps", rows)
        try:
            pictures = self._runtime.generate(parameters, drafts, self._after_step, self._beat)
        except EngineError as error:
            self._fail(error)
        else:
            self._take_messages()
            for row, pixels in zip(rows, pictures, strict=True):
                if not row.generation.gone and pixels is not None:
                    self._finish(row, pixels)
        self._enter("queue", [row for row in rows if not row.generation.done])
        callers = {row.generation.request for row in rows if row.generation.done}
        self._returning.batch_ended(len(callers), time.monotonic() - started)
        self._rows = []

    def _enter(self, phase: str, rows: Collection[_Row]) -> None:
        """Records a phase for the service's tracing; it is sent with the end of the next step."""
        now = time.monotonic()
        self._phases += [Phase(number, phase, now) for number in {row.generation.request: row for row in rows}]

    def _after_step(self, step: int, steps: int, preview: Preview) -> Collection[int]:
        self._take_messages()
        self._expire()
        self._steps += 1
        if self._stopped:
            return ()
        wanted = [place for place, row in enumerate(self._rows) if not row.generation.gone]
        for place in wanted:
            self._rows[place].generation.stepped(self._rows[place].index, step)
        for generation in {
            self._rows[place].generation.request: self._rows[place].generation for place in wanted
        }.values():
            if (mean := generation.progress()) is not None:
                self._send(Progress(generation.request, mean, steps))
        self._show(wanted, step, steps, preview)
        if step == steps:  # only decoding to pixels follows
            self._enter("decode", [self._rows[place] for place in wanted])
        self._report(stepped=len(self._rows))
        return wanted

    def _show(self, wanted: Collection[int], step: int, steps: int, preview: Preview) -> None:
        """Sends the previews that are due."""
        due: dict[int, int] = {}
        for place in wanted:
            row = self._rows[place]
            number = row.generation.partial(row.index, step, steps)
            if number is not None:
                due[place] = number
        if not due:
            return
        pictures = preview(list(due))
        for (place, number), pixels in zip(due.items(), pictures, strict=bool(pictures)):
            self._picture(self._rows[place], pixels, number)

    # --- outgoing messages

    def _picture(self, row: _Row, pixels: bytes, partial: int | None) -> None:
        size = row.generation.parameters
        self._send(Picture(row.generation.request, row.index, partial, size.width, size.height, pixels))

    def _finish(self, row: _Row, pixels: bytes) -> None:
        generation = row.generation
        self._picture(row, pixels, None)
        generation.finish(row.index)
        if generation.done:
            self._send(Finished(generation.request, generation.seconds, generation.computed))
            self._forget(generation)

    def _fail(self, error: EngineError) -> None:
        """Refuses the request of a lone image. With several images the culprit is unknown: all are computed again, in
        smaller batches if memory was short, else one by one."""
        rows = [row for row in self._rows if not row.generation.gone]
        if len(self._rows) == 1:
            for generation in [row.generation for row in rows]:
                self._forget(generation)
                self._refuse(generation.request, error)
            return
        if error.code == "OUT_OF_MEMORY":
            own = self._runtime.ready.sizes.width * self._runtime.ready.sizes.height
            size = self._rows[0].generation.parameters
            fewer = len(self._rows) // 2 * size.width * size.height // own
            self._images = max(1, min(self._images - 1, fewer))
        for row in rows:
            row.generation.give_back(row.index)
            row.generation.alone |= error.code != "OUT_OF_MEMORY"

    def _beat(self) -> None:
        """Sends a heartbeat while no steps run."""
        if time.monotonic() - self._beaten > BEAT_SECONDS:
            self._report(stepped=len(self._rows))

    def _report(self, stepped: int = 0) -> None:
        """Sends the heartbeat after every step (of a batch of `stepped` images) and whenever the counters change."""
        running = sum(one.running > 0 for one in self._generations.values())
        counters = Counters(self._steps, running, len(self._generations) - running, stepped)
        if stepped or counters != self._reported:
            self._send(Stepped(counters, self._phases))
            self._phases, self._reported = [], counters
            self._beaten = time.monotonic()


@dataclass(slots=True)
class _Image:
    """The progress of one image."""

    steps: int = 0  # done
    partials: int = 0  # previews sent


class Generation:
    """A checked request and its images."""

    def __init__(self, request: Generate) -> None:
        self._generate = request
        self.request = request.request
        self.client = request.client
        self.deadline = math.inf if request.deadline is None else request.deadline  # on the monotonic clock
        self.parameters = request.parameters
        self.kind = request.parameters, request.draft.mode, bool(request.draft.negative)  # equal in all of a batch
        self.waiting = list(range(request.count))  # indexes of waiting images, the next one first
        self.running = 0  # images in the current batch
        self.alone = False  # its images run one by one, because a batch with them failed
        self.gone = False  # cancelled or refused
        self.computed = 0  # steps, including those of failed batches
        self._left = request.count  # images that are not sent yet
        self._images = [_Image() for _ in range(request.count)]
        self._started: float | None = None
        self._reported = 0

    @property
    def done(self) -> bool:
        """True once all images are sent."""
        return not self._left

    @property
    def seconds(self) -> float:
        """Seconds since its first image was started."""
        return time.monotonic() - self._started if self._started is not None else 0.0

    def start(self) -> int:
        """Takes the next waiting image and returns its index."""
        if self._started is None:
            self._started = time.monotonic()
        self.running += 1
        return self.waiting.pop(0)

    def give_back(self, index: int) -> None:
        """Requeues an image whose batch failed."""
        self.running -= 1
        self.waiting.append(index)
        self.waiting.sort()

    def finish(self, index: int) -> None:
        """Marks an image as sent."""
        self.running -= 1
        self._left -= 1

    def draft(self, index: int) -> Draft:
        """Returns the runtime's input for an image."""
        first = self._generate.draft
        return replace(first, seed=(first.seed + index) % 2**64)

    def stepped(self, index: int, step: int) -> None:
        """Counts a finished step of an image."""
        self.computed += 1
        image = self._images[index]
        image.steps = max(image.steps, step)  # a failed batch is computed again

    def progress(self) -> int | None:
        """Returns the mean of its images' steps if progress is requested and the mean has grown, else None."""
        mean = sum(image.steps for image in self._images) // len(self._images)
        if not self._generate.progress or mean <= self._reported:
            return None
        self._reported = mean
        return mean

    def partial(self, index: int, step: int, steps: int) -> int | None:
        """Returns the number of the preview that is due after a step, and counts it as sent; None if none is due."""
        image = self._images[index]
        if image.partials >= self._generate.partials or step >= steps:
            return None
        if step < max(1, steps * (image.partials + 1) // (self._generate.partials + 1)):
            return None
        image.partials += 1
        return image.partials - 1
