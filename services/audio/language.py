"""What callers call a language: its code or its English name, as Whisper takes both."""

from __future__ import annotations

from services.audio.engine.languages import LANGUAGES
from services.errors import InvalidRequest

SHOWN = 40  # characters of what a caller sent
# Other names that Whisper knows for some of them.
ALIASES = {
    "burmese": "my",
    "castilian": "es",
    "flemish": "nl",
    "haitian": "ht",
    "letzeburgesch": "lb",
    "mandarin": "zh",
    "moldavian": "ro",
    "moldovan": "ro",
    "panjabi": "pa",
    "pushto": "ps",
    "sinhalese": "si",
    "valencian": "ca",
}
_CODES = {name: code for code, name in LANGUAGES.items()} | ALIASES


def language_code(language: str) -> str:
    """The code of a language; an empty one stays empty. Raises InvalidRequest for one that Whisper does not know."""
    name = language.strip().lower()
    if not name or name in LANGUAGES:
        return name
    if name not in _CODES:
        raise InvalidRequest(
            f"'language' must be an ISO 639-1 code or the English name of a language that Whisper knows, such as "
            f"'de' or 'german', not {language[:SHOWN]!r}.",
            param="language",
        )
    return _CODES[name]
