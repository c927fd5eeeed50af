"""A worker process with one loaded model, started by the text service as `python -m services.text.engine FD`.

Three threads: the main thread runs the batch loop; a reader takes messages, and another tokenizes prompts and compiles
grammars, while steps run.
"""

from __future__ import annotations

import functools
import importlib
import math
import queue
from collections.abc import Callable, Generator
from typing import Any

from services.text.engine import embedding_loop
from services.text.engine.embedding_loop import EmbeddingLoop
from services.text.engine.kv_cells import kept_cells
from services.text.engine.loop import BatchLoop
from services.text.engine.messages import USUAL_BYTES, Accepted, Capability, EngineOptions, Load, Submit, ToWorker
from services.text.engine.pairs import prepare_pairs
from services.text.engine.preparation import Preparation, Preparing
from services.text.engine.request_loop import BatchLimits, Inbox, RequestLoop
from services.text.engine.runtime import PicturePart, Runtime, TokenSpan
from services.text.engine.sequence import Sequence
from services.text.engine.speculation import NGRAM, measured_costs
from services.text.engine.token_budget import step_pace, step_tokens
from services.worker.channel import BlockingChannel
from services.worker.loop import Pace
from services.worker.main import Serving, importing, run_worker, start_thread
from services.worker.messages import EngineError, LoadingProgress, RequestRefused

# Some tokenizers split text with a recursive regular expression: a long word needs a deep stack.
PREPARATION_STACK_BYTES = 512 * 1024 * 1024
PREDICTED_CHARACTERS = 4  # of a prediction that are read, per token of the context

# By capability and runtime: the module and the class that loads a model.
RUNTIMES = {
    "chat": {
        "llama_cpp": ("services.text.engine.runtimes.llama_cpp", "LlamaEngine"),
        "torch": ("services.text.engine.runtimes.torch.engine", "SafetensorsEngine"),
        "vllm": ("services.text.engine.runtimes.vllm.model", "VllmModel"),
    },
    "embeddings": {
        "llama_cpp": ("services.text.engine.runtimes.llama_cpp_encoder", "LlamaEncoder"),
        "torch": ("services.text.engine.runtimes.torch.encoder", "TorchEncoder"),
    },
    "rerank": {
        "llama_cpp": ("services.text.engine.runtimes.llama_cpp_encoder", "LlamaReranker"),
        "torch": ("services.text.engine.runtimes.torch.reranker", "TorchReranker"),
    },
}


def main() -> None:
    """Loads the model that the first message names and serves it until stopped."""
    run_worker(ToWorker, Load, _load)


def _load(load: Load, channel: BlockingChannel[ToWorker]) -> Serving:
    model = _loader(load.capability, load.runtime)(load.options, LoadingProgress(channel))
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    loop: RequestLoop | EmbeddingLoop
    if load.capability != "chat":
        loop = EmbeddingLoop(model, load.options.batch_tokens, inbox, channel.send, load.options.queue_tokens)
    else:
        create = _scheduled if load.runtime == "vllm" else _generating
        loop = create(model, load.options, inbox, channel.send)

    prepare = _PREPARES[load.capability]
    preparation = Preparation(lambda message: prepare(model, message, channel.send), inbox)
    start_thread("preparation", preparation.run, PREPARATION_STACK_BYTES)
    return Serving(model.ready, preparation.take, loop.run)


def _generating(runtime: Runtime, options: EngineOptions, inbox: Inbox, send: Callable[[object], None]) -> BatchLoop:
    ready = runtime.ready
    cached = (
        kept_cells(ready.kv_tokens, ready.context_tokens, shared=runtime.shares_cells) if options.prefix_cache else 0
    )
    costs = measured_costs(runtime, step_tokens(options)) if options.speculation == NGRAM else None
    return BatchLoop(runtime, _limits(options, cached), inbox, send, _pace(runtime, options), costs)


def _scheduled(model: Any, options: EngineOptions, inbox: Inbox, send: Callable[[object], None]) -> RequestLoop:
    """Creates the loop for a model with its own scheduler."""
    from services.text.engine.runtimes.vllm.model import VllmLoop  # noqa: PLC0415 (it is there where the model is)

    return VllmLoop(model, _limits(options, 0), inbox, send, model.pace(options))


def _limits(options: EngineOptions, cached: int) -> BatchLimits:
    return BatchLimits(options.max_sequences, options.batch_tokens, options.chunk_tokens, cached, options.queue_tokens)


def _pace(runtime: Runtime, options: EngineOptions) -> Pace:
    """Measures how many tokens a step may have on this machine."""

    def compute(tokens: int) -> None:
        runtime.step([TokenSpan(0, 0, [0] * tokens, None)])
        runtime.drop(0)

    return step_pace(options, runtime.ready.context_tokens, compute)


def _loader(capability: str, runtime: str) -> Callable[[EngineOptions, Callable[[float], None]], Any]:
    module, name = RUNTIMES[capability][runtime]
    with importing(runtime):
        loader: Callable[[EngineOptions, Callable[[float], None]], Any]
        loader = getattr(importlib.import_module(module), name)
    return loader


def _prepare(runtime: Runtime, submit: Submit, send: Callable[[object], None]) -> Preparing:
    """Tokenizes a prompt, checks its length and compiles the grammar. Sends a refusal immediately."""
    parts: list[PicturePart] = []
    try:
        if submit.pictures:
            tokens = given = yield from _seen(runtime, submit, parts)
        else:
            tokens = given = _tokens(runtime, submit.prompt)
        if submit.suffix:
            _check_size(runtime, len(submit.suffix.encode()))
            tokens = _infilled(runtime, given, submit.suffix)
        yield
        refusal = _refusal(submit, len(tokens), runtime.ready.context_tokens)
        if refusal:
            send(refusal)
            return None
        constraint = runtime.constraint(submit.grammar) if submit.grammar else None
        if submit.prediction:
            yield
        prediction = _prediction(runtime, submit.prediction)
    except EngineError as error:
        send(error.refusal(submit.request))
        return None
    text = _text(runtime, given) if submit.scored or not isinstance(submit.prompt, str) else ""
    send(Accepted(submit.request, len(tokens), text))
    return Sequence(
        submit.request,
        submit.client,
        tokens,
        submit.sampling,
        constraint,
        submit.logprobs,
        submit.special,
        submit.cache_key,
        math.inf if submit.deadline is None else submit.deadline,
        prediction,
        submit.scored,
        parts,
    )


def _seen(runtime: Runtime, submit: Submit, parts: list[PicturePart]) -> Generator[None, None, list[int]]:
    """Returns the tokens of a prompt with pictures, which stand at its marks, and adds their parts. Each picture is a
    turn.

    Raises EngineError: UNSUPPORTED for a model that does not see, INVALID_REQUEST if the chat template left a picture
    out or put one at the end, CONTEXT_LENGTH_EXCEEDED.
    """
    if not runtime.ready.sees:
        raise EngineError("UNSUPPORTED", "the model takes no pictures", submit.pictures[0].param)
    before, after = runtime.ready.picture_margins
    prompt = str(submit.prompt).replace(submit.mark, before + submit.mark + after)
    _check_size(runtime, len(prompt.encode()))
    first, *texts = prompt.split(submit.mark)
    if len(texts) != len(submit.pictures):
        message = f"the model's chat template makes a prompt with {len(texts)} of {len(submit.pictures)} pictures"
        raise EngineError("INVALID_REQUEST", message, "messages")
    begin = len(runtime.tokenize(""))
    tokens = runtime.tokenize(first)
    for number, (pixels, text) in enumerate(zip(submit.pictures, texts, strict=True), 1):
        yield
        own, found = runtime.see(pixels)
        for part in found:
            part.start += len(tokens)
        parts += found
        tokens += own
        tokens += runtime.tokenize(text)[begin:] if text else []
        if len(tokens) >= runtime.ready.context_tokens:
            message = (
                f"the prompt has {len(tokens)} tokens up to the text after picture {number}, "
                f"but this model's context holds {runtime.ready.context_tokens}, answer included"
            )
            raise EngineError("CONTEXT_LENGTH_EXCEEDED", message, pixels.param)
    if tokens[-1] < 0:
        message = "the prompt ends with a picture, and an answer can follow only a text"
        raise EngineError("INVALID_REQUEST", message, "messages")
    return tokens


def _infilled(runtime: Runtime, prompt: list[int], suffix: str) -> list[int]:
    """Returns the tokens of a prompt and a suffix as the model was trained to fill the gap between them.

    What the tokenizer itself prepends to a text stays in front. Raises EngineError (UNSUPPORTED) for a model without
    fill-in-the-middle tokens.
    """
    if runtime.ready.infill is None:
        raise EngineError("UNSUPPORTED", "the model has no tokens for fill-in-the-middle", "suffix")
    before, between, after = runtime.ready.infill
    start = runtime.tokenize("")
    begun = prompt[len(start) :] if prompt[: len(start)] == start else prompt
    return [*start, before, *begun, between, *runtime.tokenize(suffix)[len(start) :], after]


def _prediction(runtime: Runtime, text: str) -> list[int]:
    """Returns the tokens of the expected answer, as far as the context has room for it."""
    if not text:
        return []
    context = runtime.ready.context_tokens
    tokens = runtime.tokenize(text[: context * PREDICTED_CHARACTERS])
    return tokens[1 if runtime.ready.add_bos else 0 :][:context]


def _tokens(runtime: Runtime, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        _check_size(runtime, len(prompt.encode()))
        return runtime.tokenize(prompt)
    if len(prompt) > runtime.ready.context_tokens:
        return prompt  # it is refused for its length
    for token in prompt:
        if not 0 <= token < runtime.ready.vocabulary:
            message = f"the prompt contains token {token}; this model's tokens are 0 to {runtime.ready.vocabulary - 1}"
            raise EngineError("INVALID_REQUEST", message, "prompt")
    return prompt


def _check_size(runtime: Runtime, size: int) -> None:
    """Refuses a prompt of `size` bytes before tokenization if it cannot fit into the context.

    Tokenizing the longest allowed prompt takes a minute, during which the reader serves no other request.
    """
    context = runtime.ready.context_tokens
    if size <= context * USUAL_BYTES:
        return
    least = size // _longest(runtime.piece, runtime.ready.vocabulary) + 1
    if least > context:
        message = f"the prompt has {size} bytes, at least {least} tokens, but this model's context holds {context}"
        raise EngineError("CONTEXT_LENGTH_EXCEEDED", message, "messages")


@functools.cache
def _longest(piece: Callable[[int, bool], bytes], vocabulary: int) -> int:
    """Returns the bytes of the longest token of a vocabulary."""
    return max(1, *(len(piece(token, True)) for token in range(vocabulary)))


def _text(runtime: Runtime, tokens: list[int]) -> str:
    return b"".join(runtime.name(token) for token in tokens).decode(errors="replace")


def _refusal(submit: Submit, prompt: int, context: int) -> RequestRefused | None:
    """Returns the refusal of a prompt that does not fit, with the numbers, or None if it fits."""
    wanted = (submit.sampling.max_tokens or 0) if submit.room_required else 0
    code, param = "CONTEXT_LENGTH_EXCEEDED", "messages"
    if not prompt:
        code, message = "INVALID_REQUEST", "the prompt is empty"
    elif prompt >= context:
        message = f"the prompt has {prompt} tokens, but this model's context holds {context}, answer included"
    elif prompt + wanted > context:
        param = "max_tokens"
        message = (
            f"the prompt has {prompt} tokens and max_tokens asks for {wanted} more, together {prompt + wanted}, "
            f"but this model's context holds {context}"
        )
    else:
        return None
    return RequestRefused(request=submit.request, code=code, message=message, param=param)


_PREPARES: dict[Capability, Callable[[Any, Any, Callable[[object], None]], Preparing]] = {
    "chat": _prepare,
    "embeddings": embedding_loop.prepare,
    "rerank": prepare_pairs,
}

if __name__ == "__main__":
    main()
