"""Filling in: the arrangement of a prompt and the text after a gap, which the answer fills."""

from __future__ import annotations

from services.text.engine.runtime import Runtime
from services.worker.messages import EngineError


def infilled(runtime: Runtime, prompt: list[int], suffix: str) -> list[int]:
    """Returns the tokens of a prompt and a suffix as the model was trained to fill the gap between them.

    What the tokenizer itself prepends to a text stays in front. Raises EngineError (UNSUPPORTED) for a model without
    tokens for filling in.
    """
    if runtime.ready.infill is None:
        raise EngineError("UNSUPPORTED", "the model has no tokens for fill-in-the-middle", "suffix")
    before, between, after = runtime.ready.infill
    start = runtime.tokenize("")
    begun = prompt[len(start) :] if prompt[: len(start)] == start else prompt
    return [*start, before, *begun, between, *runtime.tokenize(suffix)[len(start) :], after]
