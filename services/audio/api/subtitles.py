"""Subtitles: SubRip (srt) and WebVTT (vtt), written phrase by phrase."""

from __future__ import annotations

from services.audio.engine.messages import Segment


class SubtitleWriter:
    """A writer of segments as subtitle cues."""

    head = ""  # the start of the file

    def cue(self, segment: Segment) -> str:
        """Returns the next cue with the blank line that ends it; "" for a segment without text."""
        raise NotImplementedError


class SrtWriter(SubtitleWriter):
    """SubRip: numbered cues, a comma before the milliseconds."""

    def __init__(self) -> None:
        self._count = 0

    def cue(self, segment: Segment) -> str:
        """Returns the next cue."""
        text = cue_text(segment.text)
        if not text:
            return ""
        self._count += 1
        return f"{self._count}\n{clock(segment.start, ',')} --> {clock(segment.end, ',')}\n{text}\n\n"


class VttWriter(SubtitleWriter):
    """WebVTT. Hours are always written, as OpenAI's API does; readers need them only from the first hour on."""

    head = "WEBVTT\n\n"

    def cue(self, segment: Segment) -> str:
        """Returns the next cue."""
        text = cue_text(segment.text)
        if not text:
            return ""
        text = text.replace("&", "&amp;").replace("<", "&lt;")  # in WebVTT they open an escape and a tag
        return f"{clock(segment.start, '.')} --> {clock(segment.end, '.')}\n{text}\n\n"


def cue_text(text: str) -> str:
    """Cleans a segment's text for a cue: an arrow would read as a timing line, an empty line as the cue's end."""
    while "-->" in text:  # repeated, because `--->` becomes another arrow
        text = text.replace("-->", "->")
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def clock(seconds: float, mark: str) -> str:
    """Formats a time as `HH:MM:SS`, `mark` and milliseconds; a negative time becomes zero."""
    total = max(0, round(seconds * 1000))
    hours, rest = divmod(total, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    whole, milliseconds = divmod(rest, 1000)
    return f"{hours:02d}:{minutes:02d}:{whole:02d}{mark}{milliseconds:03d}"
