"""Languages as callers name them: by code or English name, as Whisper accepts both."""

from __future__ import annotations

from services.audio.engine.languages import LANGUAGES
from services.errors import InvalidRequest

SHOWN = 40  # characters of the caller's text
# Other names that Whisper knows for some languages.
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
    """Returns the code of a language; empty stays empty. Raises InvalidRequest for one that Whisper does not know."""
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
