"""Reasoning blocks before an answer: `<think>...</think>`, and `[THINK]...[/THINK]` of the Mistral models.

Only leading blocks count, because an answer may mention such a tag.
"""

from __future__ import annotations

from services.text.parsers.reader import MIN_MARK, Reader, Reading

THINK = "<think>"
# The opening and closing mark of each block.
BLOCKS = {THINK: "</think>", "[THINK]": "[/THINK]"}


def thoughts(reader: Reader, *, is_open: bool, opener: str = THINK) -> Reading[None]:
    """Reads the leading blocks. `is_open`: the prompt ends with `opener`."""
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
