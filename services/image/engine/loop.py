"""The batch loop of an image worker: images that differ only in prompt and seed are computed together.

A batch runs from its first step to its last. The loop receives messages between two steps, so that a cancelled request
costs at most the current step. A batch takes the images that are waiting when it starts; it waits only briefly for more
(`reunion.py`). The service enforces time limits.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from services.image.engine.generation import Generation
from services.image.engine.messages import (
    Cancel,
    Counters,
    Finished,
    Generate,
    Phase,
    Picture,
    Progress,
    Refused,
    Stepped,
    Stop,
)
from services.image.engine.reunion import Reunion
from services.image.engine.runtime import Preview, Recipe, Runtime
from services.image.engine.turns import Turns
from services.worker.messages import EngineError

BEAT_SECONDS = 1.0  # between two heartbeats while no steps run

LoopInbox = queue.SimpleQueue[Generate | Cancel | Stop]


@dataclass(frozen=True, slots=True)
class _Row:
    """An image in a batch."""

    generation: Generation
    index: int  # in its request


class BatchLoop:
    """Runs the checked requests of one loaded model. `send` sends a message to the service."""

    def __init__(self, runtime: Runtime, inbox: LoopInbox, send: Callable[[object], None]) -> None:
        self._runtime = runtime
        self._inbox = inbox
        self._send = send
        self._images = runtime.ready.batch_images  # batch limit, in images of the model's default size
        self._generations: dict[int, Generation] = {}
        self._turns = Turns()
        self._reunion = Reunion()
        self._stopped = False
        self._rows: list[_Row] = []  # of the running batch
        self._steps = 0
        self._reported: Counters | None = None
        self._phases: list[Phase] = []
        self._beaten = 0.0

    def run(self) -> None:
        """Serves until a Stop arrives."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """Runs one turn of the loop, at most one batch; waits for a message when idle."""
        self._take_messages(0.0 if self._generations else None)
        self._gather()
        self._expire()
        if not self._stopped and self._generations:
            self._compute()
        self._report()
        return not self._stopped

    # --- incoming messages

    def _take_messages(self, seconds: float | None = 0.0) -> None:
        """Receives all queued messages; waits up to `seconds` for the first one, indefinitely for None."""
        while not self._stopped:
            try:
                message = self._inbox.get(seconds != 0.0, seconds)
            except queue.Empty:
                return
            seconds = 0.0
            if isinstance(message, Stop):
                self._stopped = True
            elif isinstance(message, Generate):
                default = self._runtime.ready.default_scheduler
                self._generations[message.request] = Generation(message, default)
                self._reunion.meet()
            elif generation := self._generations.get(message.request):
                self._forget(generation)

    def _gather(self) -> None:
        """Waits for the last batch's callers while images are waiting and the batch has room for more."""
        while not self._stopped and self._generations and (seconds := self._reunion.seconds):
            if sum(len(one.waiting) for one in self._generations.values()) >= self._images:
                return
            self._take_messages(seconds)

    def _expire(self) -> None:
        """Refuses the requests whose deadlines have passed."""
        now = time.monotonic()
        for generation in [one for one in self._generations.values() if one.deadline <= now]:
            self._forget(generation)
            self._send(Refused(request=generation.number, code="TIMEOUT", message="the caller's deadline has passed"))

    def _forget(self, generation: Generation) -> None:
        generation.gone = True
        del self._generations[generation.number]
        self._turns.forget(generation, self._generations.values())

    # --- a batch

    def _choose(self) -> list[_Row]:
        """Chooses the next batch: the next image in turn, then images with the same recipe, also in turn."""
        waiting = [one for one in self._generations.values() if one.waiting]
        first = self._turns.next(waiting)
        if first is None:
            return []
        rows = [_Row(first, first.start())]
        if first.alone:
            return rows
        companions = [one for one in waiting if one.recipe == first.recipe and not one.alone]
        room = self._room(first.recipe)
        while len(rows) < room and (chosen := self._turns.next(one for one in companions if one.waiting)):
            rows.append(_Row(chosen, chosen.start()))
        return rows

    def _room(self, recipe: Recipe) -> int:
        """Returns the batch limit for a size: larger images mean fewer of them."""
        own = self._runtime.ready.sizes.width * self._runtime.ready.sizes.height
        return max(1, min(self._images, self._images * own // (recipe.width * recipe.height)))

    def _compute(self) -> None:
        self._rows = rows = self._choose()
        if not rows:
            return
        recipe = rows[0].generation.recipe
        drafts = [row.generation.draft(row.index) for row in rows]
        started = time.monotonic()
        self._enter("steps", rows)
        try:
            pictures = self._runtime.generate(recipe, drafts, self._after_step, self._beat)
        except EngineError as error:
            self._fail(error)
        else:
            self._take_messages()
            for row, pixels in zip(rows, pictures, strict=True):
                if not row.generation.gone and pixels is not None:
                    self._finish(row, pixels)
        self._enter("queue", [row for row in rows if not row.generation.done])
        callers = {row.generation.number for row in rows if row.generation.done}
        self._reunion.part(len(callers), time.monotonic() - started)
        self._rows = []

    def _enter(self, phase: str, rows: Collection[_Row]) -> None:
        """Records a phase for the service's tracing; it is sent with the end of the next step."""
        now = time.monotonic()
        self._phases += [Phase(number, phase, now) for number in {row.generation.number: row for row in rows}]

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
            self._rows[place].generation.number: self._rows[place].generation for place in wanted
        }.values():
            if (mean := generation.progress()) is not None:
                self._send(Progress(generation.number, mean, steps))
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
        recipe = row.generation.recipe
        self._send(Picture(row.generation.number, row.index, partial, recipe.width, recipe.height, pixels))

    def _finish(self, row: _Row, pixels: bytes) -> None:
        generation = row.generation
        self._picture(row, pixels, None)
        generation.finish(row.index)
        if generation.done:
            self._send(Finished(generation.number, generation.seconds, generation.computed))
            self._forget(generation)

    def _fail(self, error: EngineError) -> None:
        """Refuses the request of a lone image. With several images the culprit is unknown: all are computed again, in
        smaller batches if memory was short, else one by one."""
        rows = [row for row in self._rows if not row.generation.gone]
        if len(self._rows) == 1:
            for generation in [row.generation for row in rows]:
                self._forget(generation)
                self._send(
                    Refused(request=generation.number, code=error.code, message=error.message, param=error.param)
                )
            return
        if error.code == "OUT_OF_MEMORY":
            own = self._runtime.ready.sizes.width * self._runtime.ready.sizes.height
            recipe = self._rows[0].generation.recipe
            fewer = len(self._rows) // 2 * recipe.width * recipe.height // own
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
