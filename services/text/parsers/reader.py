"""The incremental text of an answer, the read position in it, and the events so far; the reasoning before an answer.

Methods that may need more text are generators: they yield while they wait, and continue when text arrives.
Their results depend on the text alone, never on how it was split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from services.text.conversation import CallArguments, CallEnded, CallStarted, ParsedEvent, ReasoningDelta, TextDelta

T = TypeVar("T")
Reading = Generator[None, None, T]
Emit = Callable[[str], None]

SPACE = " \t\r\n"
# Markup that has not become a call within this many characters is text. This bounds buffering and rereading.
MAX_HELD = 2048
# The minimum length of an incomplete mark at the end of a truncated answer; a single character may be text.
MIN_MARK = 2
THINK = "<think>"
# The opening and closing mark of a reasoning block; the second one is of the Mistral models.
BLOCKS = {THINK: "</think>", "[THINK]": "[/THINK]"}


class _Spacing:
    """Drops the whitespace around markup: leading whitespace if `trim` is set, trailing unless more text follows."""

    __slots__ = ("_held", "_trim")

    def __init__(self, *, trim: bool) -> None:
        self._held: list[str] = []
        self._trim = trim

    def passed(self, text: str) -> str:
        if self._trim:
            text = text.lstrip(SPACE)
        visible = text.rstrip(SPACE)
        space = text[len(visible) :]
        if visible:
            visible = self.take_held() + visible
            self._trim = False
        if space:
            self._held.append(space)
        return visible

    def take_held(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        return held

    def drop(self) -> None:
        self._held.clear()
        self._trim = True


class Reader:
    """An incremental reader of one answer."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._cut = False
        self._broken_off = False
        self._held_from: int | None = None
        self._events: list[ParsedEvent] = []
        self._content = _Spacing(trim=False)
        self._reasoning = _Spacing(trim=True)
        self._calls = 0

    # --- driver interface

    def feed(self, text: str) -> None:
        """Adds text."""
        if self._held_from is None:
            self._text = self._text[self._at :] + text
            self._at = 0
        else:
            self._text += text

    def end(self, *, cut: bool) -> None:
        """Ends the text. `cut`: the answer was truncated."""
        self._ended = True
        self._cut = cut

    def flush(self) -> None:
        """Emits buffered whitespace at the very end."""
        for spacing, event in ((self._reasoning, ReasoningDelta), (self._content, TextDelta)):
            if held := spacing.take_held():
                self._events.append(event(held))

    def take_events(self) -> list[ParsedEvent]:
        """Returns and clears the events so far."""
        events, self._events = self._events, []
        return events

    # --- reading

    def more(self) -> Reading[bool]:
        """Waits for more text. Returns False if there is none, or if the limit of held text is reached."""
        if self._ended or self._end < len(self._text) or self._end == self._limit:
            self._broken_off = self._cut and self._end == len(self._text)
            return False
        yield
        return True

    @property
    def _limit(self) -> int | None:
        """The read limit before a call has started."""
        return None if self._held_from is None else self._held_from + MAX_HELD

    @property
    def _end(self) -> int:
        limit = self._limit
        return len(self._text) if limit is None else min(len(self._text), limit)

    def peek(self) -> Reading[str]:
        """Returns the next character without reading it; empty at the end."""
        while self._at >= self._end:
            if not (yield from self.more()):
                return ""
        return self._text[self._at]

    def starts(self, *marks: str) -> Reading[str]:
        """Returns the one of `marks` that follows, or an empty string. None of them may be a prefix of another."""
        longest = max(map(len, marks))
        while True:
            rest = self._text[self._at : min(self._at + longest, self._end)]
            for mark in marks:
                if rest.startswith(mark):
                    return mark
            if not any(mark.startswith(rest) for mark in marks) or not (yield from self.more()):
                return ""

    def take(self, length: int) -> Reading[str]:
        """Reads the next `length` characters; fewer at the end."""
        while self._at + length > self._end:
            if not (yield from self.more()):
                break
        taken = self._text[self._at : min(self._at + length, self._end)]
        self._at += len(taken)
        return taken

    def skip_space(self) -> Reading[None]:
        """Skips whitespace."""
        while (char := (yield from self.peek())) and char in SPACE:
            self._at += 1

    def skip(self, mark: str) -> Reading[bool]:
        """Skips whitespace and then `mark`. Returns False if `mark` does not follow."""
        yield from self.skip_space()
        if not (yield from self.starts(mark)):
            return False
        self._at += len(mark)
        return True

    def scan(self, pattern: re.Pattern[str], emit: Emit) -> Reading[str]:
        """Passes text on up to a character that `pattern` matches. Returns it unread; empty at the end."""
        while True:
            found = pattern.search(self._text, self._at, self._end)
            end = found.start() if found else self._end
            if end > self._at:
                emit(self._text[self._at : end])
                self._at = end
            if found:
                return found[0]
            if not (yield from self.more()):
                return ""

    def until(self, marks: tuple[str, ...], emit: Emit, most: int | None = None) -> Reading[str]:
        """Passes text on up to the first of `marks`. Returns the mark unread; empty at the end.

        Stops after `most` characters, also with an empty result.
        """
        left = most
        while True:
            end, mark = self._find(marks)
            if left is not None and end - self._at > left:
                end, mark = self._at + left, ""
            if end > self._at:
                emit(self._text[self._at : end])
                left = None if left is None else left - (end - self._at)
                self._at = end
            if mark or left == 0:
                return mark
            if not (yield from self.more()):
                # A possible mark at the end is text, unless the answer was truncated within it.
                if self._broken_off and len(self.rest) >= MIN_MARK:
                    self.drop()
                if rest := self._text[self._at : self._end][:left]:
                    emit(rest)
                    self._at += len(rest)
                return ""

    def _find(self, marks: tuple[str, ...]) -> tuple[int, str]:
        """Returns the position of the first mark, or of a suffix that may still become one."""
        stop = self._end
        found = [(at, mark) for mark in marks if (at := self._text.find(mark, self._at, stop)) >= 0]
        if found:
            return min(found)
        longest = max(map(len, marks), default=1)
        for at in range(max(self._at, stop - longest + 1), stop):
            if any(mark.startswith(self._text[at:stop]) for mark in marks):
                return at, ""
        return stop, ""

    # --- backtracking

    def hold(self) -> None:
        """Marks the position to which `back` returns, for text that may be a call. The start of a call clears it.

        Until then, reading is limited to the next MAX_HELD characters.
        """
        self._held_from = self._at

    def back(self) -> None:
        """Returns to the position of `hold`."""
        if self._held_from is not None:
            self._at = self._held_from
            self._held_from = None

    def release(self) -> None:
        """Treats the text since `hold` as markup."""
        self._held_from = None

    def give(self) -> None:
        """Emits the text since `hold` unchanged as content."""
        if self._held_from is not None:
            held = self._text[self._held_from : self._at]
            self._held_from = None
            self.content(held)

    # --- truncated markup

    @property
    def broken_off(self) -> bool:
        """True if a truncated answer ended while markup was being read."""
        return self._broken_off

    @property
    def held(self) -> str:
        """The text since `hold`."""
        return "" if self._held_from is None else self._text[self._held_from :]

    @property
    def rest(self) -> str:
        """The unread text."""
        return self._text[self._at :]

    def drop(self) -> None:
        """Drops the remaining text, which is truncated markup, and the whitespace before it."""
        self._held_from = None
        self._at = len(self._text)
        self._reasoning.drop()
        self._content.drop()

    def check_prefix(self, known: Iterable[str], text: str) -> None:
        """Resets `broken_off` if the truncated name `text` is not the prefix of a known one."""
        if not any(name.startswith(text) for name in known):
            self._broken_off = False

    # --- emitting events

    def content(self, text: str) -> None:
        """Emits text for the user."""
        self._held_from = None
        if emitted := self._content.passed(text):
            self._events.append(TextDelta(emitted))

    def reasoning(self, text: str) -> None:
        """Emits reasoning."""
        self._held_from = None
        if emitted := self._reasoning.passed(text):
            self._events.append(ReasoningDelta(emitted))

    def end_reasoning(self) -> None:
        """Ends a reasoning block. The whitespace around its end belongs to the markup."""
        self._reasoning.drop()
        self._content.drop()

    def start_call(self, name: str) -> None:
        """Emits the start of a call."""
        self._held_from = None
        self._content.drop()
        self._events.append(CallStarted(self._calls, name))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """Emits more arguments of the current call."""
        if text:
            self._events.append(CallArguments(self._calls - 1, text))

    def end_call(self) -> None:
        """Emits the end of the current call."""
        self._events.append(CallEnded(self._calls - 1))


def thoughts(reader: Reader, *, is_open: bool, opener: str = THINK) -> Reading[None]:
    """Reads the blocks of reasoning before an answer, which may mention such a mark. `is_open`: the prompt ends with
    `opener`.
    """
    if is_open:
        # Some models repeat the opener of their prompt.
        if not (yield from reader.skip(opener)):
            _drop_cut_mark(reader)
        yield from _thought(reader, BLOCKS[opener])
    while True:
        reader.hold()
        yield from reader.skip_space()
        found = yield from reader.starts(*BLOCKS)
        if not found:
            if not _drop_cut_mark(reader):
                reader.back()
            return
        yield from reader.take(len(found))
        yield from _thought(reader, BLOCKS[found])


def _drop_cut_mark(reader: Reader) -> bool:
    """Drops a mark within which the answer was truncated. Returns True if there was one."""
    if not reader.broken_off or len(reader.rest) < MIN_MARK:
        return False
    reader.drop()
    return True


def _thought(reader: Reader, closer: str) -> Reading[None]:
    reader.release()
    if (yield from reader.until((closer,), reader.reasoning)):
        yield from reader.take(len(closer))
        reader.end_reasoning()
