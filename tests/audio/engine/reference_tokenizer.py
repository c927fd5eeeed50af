"""openai-whisper's own tokenizer, to compare with."""

from __future__ import annotations

import warnings

from tests.late import late

whisper_tokenizer = late("whisper.tokenizer")


def reference_tokenizer(languages: int) -> whisper_tokenizer.Tokenizer:
    """Of a model of so many languages; 0 is English alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the package leaves its files for the collector to close
        return whisper_tokenizer.get_tokenizer(
            bool(languages), num_languages=languages or 99, task="transcribe", language="en"
        )
