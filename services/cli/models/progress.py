"""The progress of a model: a bar on a terminal, lines elsewhere. Always on the standard error."""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from services.byte_count import bytes_word
from services.cli.models.page import Page
from services.cli.models.stage import Stage
from services.cli.models.words import one_line, reason_word, seconds_word, shorten

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def show(self, reached: Stage) -> None:
        """Shows the model's current stage."""
        self._view.show(self._id, reached)


class Figures(ProgressColumn):
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
        Figures(),
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
