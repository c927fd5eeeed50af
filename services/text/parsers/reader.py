"""The text of an answer as it comes, where reading stands in it, and the events told so far.

Methods that may need more text than there is are generators: they yield where they wait, and go on once there is more.
Their results depend on the text alone, never on how it was cut into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from services.text.parsers.events import CallArguments, CallEnded, CallStarted, Content, Event, Reasoning

T = TypeVar("T")
Reading = Generator[None, None, T]
Tell = Callable[[str], None]

SPACE = " \t\r\n"
# Markup that has not become a call within so many characters is text: little is held back, and little read twice.
MAX_HELD = 2048
# So much of a mark at the end of an answer that was cut off is the mark: a single character may be anything.
MIN_MARK = 2


class _Spacing:
    """Drops the whitespace around markup: in front once `trim` is set, at the end unless more text follows."""

    __slots__ = ("_held", "_trim")

    def __init__(self, *, trim: bool) -> None:
        self._held: list[str] = []
        self._trim = trim

    def passed(self, text: str) -> str:
        if self._trim:
            text = text.lstrip(SPACE)
        told = text.rstrip(SPACE)
        space = text[len(told) :]
        if told:
            told = self.take_held() + told
            self._trim = False
        if space:
            self._held.append(space)
        return told

    def take_held(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        return held

    def drop(self) -> None:
        self._held.clear()
        self._trim = True


class Reader:
    """Reads one answer from its beginning to its end."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._cut = False
        self._broken_off = False
        self._held_from: int | None = None
        self._events: list[Event] = []
        self._content = _Spacing(trim=False)
        self._reasoning = _Spacing(trim=True)
        self._calls = 0

    # --- for whoever drives the reading

    def feed(self, text: str) -> None:
        """Takes more text."""
        if self._held_from is None:
            self._text = self._text[self._at :] + text
            self._at = 0
        else:
            self._text += text

    def end(self, *, cut: bool) -> None:
        """No more text comes. `cut`: the answer was not at its end."""
        self._ended = True
        self._cut = cut

    def flush(self) -> None:
        """Tells whitespace that was held back, at the very end."""
        for spacing, event in ((self._reasoning, Reasoning), (self._content, Content)):
            if held := spacing.take_held():
                self._events.append(event(held))

    def take_events(self) -> list[Event]:
        """What has been told since."""
        events, self._events = self._events, []
        return events

    # --- what comes next

    def more(self) -> Reading[bool]:
        """Waits for more text; False when none comes, or as much as may be is held back already."""
        if self._ended or self._end < len(self._text) or self._end == self._limit:
            self._broken_off = self._cut and self._end == len(self._text)
            return False
        yield
        return True

    @property
    def _limit(self) -> int | None:
        """Up to where may be read before a call has started."""
        return None if self._held_from is None else self._held_from + MAX_HELD

    @property
    def _end(self) -> int:
        limit = self._limit
        return len(self._text) if limit is None else min(len(self._text), limit)

    def peek(self) -> Reading[str]:
        """The next character; empty at the end."""
        while self._at >= self._end:
            if not (yield from self.more()):
                return ""
        return self._text[self._at]

    def starts(self, *marks: str) -> Reading[str]:
        """The one of `marks` that comes next; empty: none does. None of them may begin another one."""
        longest = max(map(len, marks))
        while True:
            rest = self._text[self._at : min(self._at + longest, self._end)]
            for mark in marks:
                if rest.startswith(mark):
                    return mark
            if not any(mark.startswith(rest) for mark in marks) or not (yield from self.more()):
                return ""

    def take(self, length: int) -> Reading[str]:
        """The next `length` characters, read; fewer at the end."""
        while self._at + length > self._end:
            if not (yield from self.more()):
                break
        taken = self._text[self._at : min(self._at + length, self._end)]
        self._at += len(taken)
        return taken

    def skip_space(self) -> Reading[None]:
        """Reads over whitespace."""
        while (char := (yield from self.peek())) and char in SPACE:
            self._at += 1

    def skip(self, mark: str) -> Reading[bool]:
        """Reads over whitespace, and then over `mark` if it follows: says whether it did."""
        yield from self.skip_space()
        if not (yield from self.starts(mark)):
            return False
        self._at += len(mark)
        return True

    def scan(self, pattern: re.Pattern[str], tell: Tell) -> Reading[str]:
        """Passes text on up to a character that `pattern` matches; returns that one unread, or empty at the end."""
        while True:
            found = pattern.search(self._text, self._at, self._end)
            end = found.start() if found else self._end
            if end > self._at:
                tell(self._text[self._at : end])
                self._at = end
            if found:
                return found[0]
            if not (yield from self.more()):
                return ""

    def until(self, marks: tuple[str, ...], tell: Tell, most: int | None = None) -> Reading[str]:
        """Passes text on up to the first of `marks`; returns that one unread, or empty at the end.

        No more than `most` characters are passed on: after these it gives up, which is empty, too.
        """
        left = most
        while True:
            end, mark = self._find(marks)
            if left is not None and end - self._at > left:
                end, mark = self._at + left, ""
            if end > self._at:
                tell(self._text[self._at : end])
                left = None if left is None else left - (end - self._at)
                self._at = end
            if mark or left == 0:
                return mark
            if not (yield from self.more()):
                # What could have become a mark has not, unless the answer was cut off in it.
                if self._broken_off and len(self.rest) >= MIN_MARK:
                    self.drop()
                if rest := self._text[self._at : self._end][:left]:
                    tell(rest)
                    self._at += len(rest)
                return ""

    def _find(self, marks: tuple[str, ...]) -> tuple[int, str]:
        """Where the first mark begins; without one, where an end begins that may still become one."""
        stop = self._end
        found = [(at, mark) for mark in marks if (at := self._text.find(mark, self._at, stop)) >= 0]
        if found:
            return min(found)
        longest = max(map(len, marks), default=1)
        for at in range(max(self._at, stop - longest + 1), stop):
            if any(mark.startswith(self._text[at:stop]) for mark in marks):
                return at, ""
        return stop, ""

    # --- going back

    def hold(self) -> None:
        """What follows may be a call, or may be text: until a call has started `back` returns to here.

        Reading finds the text's end MAX_HELD characters behind.
        """
        self._held_from = self._at

    def back(self) -> None:
        """Returns to where `hold` was."""
        if self._held_from is not None:
            self._at = self._held_from
            self._held_from = None

    def release(self) -> None:
        """What was read since `hold` was markup."""
        self._held_from = None

    def give(self) -> None:
        """What was read since `hold` is text after all, exactly as it was written."""
        if self._held_from is not None:
            held = self._text[self._held_from : self._at]
            self._held_from = None
            self.content(held)

    # --- markup that was cut off

    @property
    def broken_off(self) -> bool:
        """Whether markup was being read when an answer that was cut off was at its end."""
        return self._broken_off

    @property
    def held(self) -> str:
        """What has come since `hold`."""
        return "" if self._held_from is None else self._text[self._held_from :]

    @property
    def rest(self) -> str:
        """What has come and is not read."""
        return self._text[self._at :]

    def drop(self) -> None:
        """All that is left is markup that was cut off; the whitespace in front of it belongs to it."""
        self._held_from = None
        self._at = len(self._text)
        self._reasoning.drop()
        self._content.drop()

    def check_begun(self, known: Iterable[str], text: str) -> None:
        """Takes `broken_off` back where the answer was cut off in a name, and `text` begins none that is known."""
        if not any(name.startswith(text) for name in known):
            self._broken_off = False

    # --- telling

    def content(self, text: str) -> None:
        """Tells the user's text."""
        self._held_from = None
        if told := self._content.passed(text):
            self._events.append(Content(told))

    def reasoning(self, text: str) -> None:
        """Tells what the model thinks."""
        self._held_from = None
        if told := self._reasoning.passed(text):
            self._events.append(Reasoning(told))

    def end_reasoning(self) -> None:
        """A thought is complete: the whitespace around its end belongs to the markup."""
        self._reasoning.drop()
        self._content.drop()

    def start_call(self, name: str) -> None:
        """Tells that a call starts."""
        self._held_from = None
        self._content.drop()
        self._events.append(CallStarted(self._calls, name))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """Tells more of the arguments of the call that was started last."""
        if text:
            self._events.append(CallArguments(self._calls - 1, text))

    def end_call(self) -> None:
        """Tells that the call that was started last has ended."""
        self._events.append(CallEnded(self._calls - 1))
