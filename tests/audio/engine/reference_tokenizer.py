"""The tokenizer of openai-whisper, as a reference."""

from __future__ import annotations

import warnings

from tests.late import late

whisper_tokenizer = late("whisper.tokenizer")


def reference_tokenizer(languages: int) -> whisper_tokenizer.Tokenizer:
    """Returns the tokenizer of a model with this number of languages; 0 means English only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the package leaves files for the garbage collector to close
        return whisper_tokenizer.get_tokenizer(
            bool(languages), num_languages=languages or 99, task="transcribe", language="en"
        )
