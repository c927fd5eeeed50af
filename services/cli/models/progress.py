"""The progress of a model's generation, combined over the replicas that prepare it, until a goal is reached.

It is shown as a bar on a terminal and as lines elsewhere, on the standard error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from allm.models.v1 import model_pb2
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from services.byte_count import bytes_word
from services.cli.models.catalog import CatalogClient, Session
from services.cli.models.connection import Late
from services.cli.models.page import (
    Page,
    document,
    one_line,
    print_document,
    reason_word,
    seconds_word,
    shorten,
    state_word,
)
from services.cli.problem import Interrupted, Problem
from services.models.status import SERVING, STATES

HOPELESS = frozenset({"failed", "unsupported"})
_RANK: dict[str, int] = {state: rank for rank, state in enumerate(STATES)}


@dataclass(frozen=True, slots=True)
class Stage:
    """The state of the replica that is furthest, or of the model if no replica reports."""

    state: str
    reason: str = ""
    runtime: str = ""
    device: str = ""
    done: int = 0  # bytes
    total: int = 0

    @property
    def over(self) -> bool:
        """True if waiting is pointless: it serves, or it never will."""
        return self.state in SERVING or self.state in HOPELESS

    @property
    def serving(self) -> bool:
        """True if requests are answered."""
        return self.state in SERVING


Goal = Callable[[model_pb2.Model], Stage | None]  # the stage to stop at; None: continue to wait


def stage(model: model_pb2.Model, generation: int) -> Stage:
    """Returns the stage of a generation."""
    stages = [of_replica(replica, generation) for replica in model.replicas]
    if not stages:
        return Stage(state_word(model.state), model.reason, model.runtime)
    return min(stages, key=lambda each: (_RANK.get(each.state, len(_RANK)), -each.done))


def of_replica(replica: model_pb2.ReplicaStatus, generation: int) -> Stage:
    """Returns the stage of a generation on one replica."""
    source: model_pb2.ReplicaStatus | model_pb2.NextGeneration | None = None
    if replica.generation >= generation:
        source = replica
    elif replica.HasField("next") and replica.next.generation >= generation:
        source = replica.next
    if source is None:
        return Stage("pending")
    state = state_word(source.state)
    runtime = replica.runtime if source is replica else ""
    return Stage(state, source.reason, runtime, replica.device, replica.done_bytes, replica.total_bytes)


def served(generation: int) -> Goal:
    """Returns a goal: a generation serves on some replica, or has failed on all."""

    def goal(model: model_pb2.Model) -> Stage | None:
        reached = stage(model, generation)
        return reached if reached.over else None

    return goal


def loaded(runtime: str = "", *, everywhere: bool = False) -> Goal:
    """Returns a goal: a model is in memory, with `runtime` if named, on one replica or on all that can."""

    def goal(model: model_pb2.Model) -> Stage | None:
        stages = [_with_runtime(replica, runtime) for replica in model.replicas]
        hopeless = [each for each in stages if each.state in HOPELESS]
        held = [each for each in stages if each.state == "loaded" and (not runtime or each.runtime == runtime)]
        if held and (not everywhere or len(held) + len(hopeless) == len(stages)):
            return held[0]
        if stages:
            return hopeless[0] if len(hopeless) == len(stages) else None
        reached = stage(model, 0)
        return reached if reached.state in HOPELESS else None

    return goal


def _with_runtime(replica: model_pb2.ReplicaStatus, runtime: str) -> Stage:
    """Returns a replica's stage; that of `runtime` if this has failed while another runtime still serves."""
    now = of_replica(replica, 0)
    if runtime and now.runtime != runtime and replica.HasField("next"):
        state = state_word(replica.next.state)
        if state in HOPELESS:
            return Stage(state, replica.next.reason, runtime, replica.device)
    return now


LINE_SECONDS = 5.0  # between two lines of progress without a terminal
BAR_WIDTH = 30


class StageProgress:
    """Shows the stages of one model during the `with` block."""

    def __init__(self, model_id: str, console: Console | None = None) -> None:
        self._id = one_line(model_id)
        console = console or Console(highlight=False, stderr=True)
        self._view: _Bar | _Lines = _Bar(console) if console.is_terminal else _Lines(Page(console))
        self._stack = ExitStack()

    def __enter__(self) -> StageProgress:
        if isinstance(self._view, _Bar):
            self._stack.enter_context(self._view.progress)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, reached: Stage) -> None:
        """Shows the model's current stage."""
        self._view.show(self._id, reached)


class FiguresColumn(ProgressColumn):
    """Bytes, rate and remaining time; nothing while the total is unknown."""

    def render(self, task: Task) -> Text:
        """Renders the figures of one bar."""
        if not task.total:
            return Text("")
        words = f"{bytes_word(task.completed)} of {bytes_word(task.total)}"
        if task.speed and not task.finished:
            words += f", {bytes_word(task.speed)}/s"
        if task.time_remaining and not task.finished:
            words += f", {seconds_word(task.time_remaining)} left"
        return Text(words)


def byte_progress(console: Console) -> Progress:
    """Returns progress bars that count bytes. They vanish at the end, when the outcome is printed."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=BAR_WIDTH),
        FiguresColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class _Bar:
    """A single line that is redrawn."""

    def __init__(self, console: Console) -> None:
        self.progress = byte_progress(console)
        self._width = console.width
        self._task: TaskID | None = None
        self._total = 0

    def show(self, model_id: str, reached: Stage) -> None:
        what = f"{model_id} {reached.state}"
        if reached.reason and not reached.total:
            what = shorten(one_line(f"{what}: {reason_word(reached.reason, model_id)}"), self._width // 2)
        if self._task is None:
            self._task = self.progress.add_task(what, total=None)
        if reached.total and reached.total != self._total:
            # Bytes of an earlier attempt do not count for the rate.
            self._total = reached.total
            self.progress.reset(self._task, total=reached.total, completed=reached.done)
        self.progress.update(self._task, description=what, completed=reached.done or None)


class _Lines:
    """Prints a line for each change of state, and from time to time one with the progress."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._state = ""
        self._line = ""
        self._first = (0.0, 0)  # start time and bytes of the rate
        self._last = 0.0

    def show(self, model_id: str, reached: Stage) -> None:
        now = time.monotonic()
        if reached.state != self._state:
            self._state, self._first = reached.state, (now, reached.done)
        elif now - self._last < LINE_SECONDS:
            return
        words = reason_word(reached.reason, model_id)
        if reached.total and not reached.over:
            words = progress_words(reached, now - self._first[0], self._first[1])
        line = f"{model_id}: {reached.state}{': ' if words else ''}{words}"
        if line != self._line:
            self._line, self._last = line, now
            self._page.say(line)


def progress_words(reached: Stage, seconds: float, before: int) -> str:
    """Returns `45 MiB of 138 MiB (33%), 12 MiB/s, 8 s left`, with the rate over `seconds` since `before` bytes."""
    words = f"{bytes_word(reached.done)} of {bytes_word(reached.total)} ({100 * reached.done // reached.total}%)"
    rate = (reached.done - before) / seconds if seconds > 0 else 0.0
    if rate > 0:
        words += f", {bytes_word(rate)}/s, {seconds_word((reached.total - reached.done) / rate)} left"
    return words


def wait_until(
    catalog: CatalogClient, model: model_pb2.Model, goal: Goal, seconds: float | None = None
) -> tuple[model_pb2.Model, Stage]:
    """Follows a model until `goal` is reached; returns the model and its stage at that time.

    Raises:
        Problem: the model was removed, or the catalog stays down, or the time limit has passed.
        Interrupted: Ctrl-C.
    """
    after = f"allm continues; `allm models show {model.id}` shows the progress"
    try:
        with StageProgress(model.id) as screen, closing(catalog.follow(model.id, seconds)) as changes:
            for current in changes:
                screen.show(stage(current, model.generation))
                if reached := goal(current):
                    return current, reached
    except Late:
        raise Problem(f"{model.id} is not done after {seconds:g} seconds; {after}") from None
    except KeyboardInterrupt:
        raise Interrupted(f"no longer waiting for {model.id}; {after}") from None
    raise Problem(f"the progress of {model.id} cannot be read")


def finish(at: Session, model: model_pb2.Model, goal: Goal | None, timeout: float, as_json: bool) -> None:
    """Waits until `goal` is reached, for at most `timeout` seconds (0: no limit), and prints the result.

    Raises:
        Problem: the model does not serve; the message says why.
    """
    reached: Stage | None = None
    if goal:
        model, reached = wait_until(at.catalog, model, goal, timeout or None)
    if as_json:
        print_document(document(model))
    if reached and not reached.serving:
        reason = reason_word(reached.reason, model.id) or "no reason is known"
        raise Problem(f"{model.id} is {reached.state}: {reason}")
    if reached and not as_json:
        means = " on ".join(part for part in (reached.runtime, reached.device) if part)
        Page().say(f"{model.id} is {reached.state}{f' ({means})' if means else ''}")
