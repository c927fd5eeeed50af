"""A worker process with one loaded model, started by the text service as `python -m services.text.engine FD`.

Two threads: the main thread runs the batch loop; a reader takes messages, tokenizes prompts and compiles grammars while
steps run. The reader also watches the service: when the service dies, its end of the socket closes, and the worker ends
immediately, whatever native code is running.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from services.text.engine import embedding_inputs
from services.text.engine.embedding_loop import EmbeddingInbox, EmbeddingLoop
from services.text.engine.encoder import Encoder
from services.text.engine.loop import BatchLoop
from services.text.engine.messages import Accepted, Embed, EngineOptions, Hold, Load, Submit, ToWorker
from services.text.engine.request_loop import Arrival, BatchLimits, Inbox, RequestLoop
from services.text.engine.runtime import Runtime, Span
from services.text.engine.token_budget import step_pace
from services.worker.channel import BlockingChannel, ChannelClosed
from services.worker.messages import Cancel, EngineError, Failed, LoadingProgress, Refused, Stop
from services.worker.pace import Pace

# Some tokenizers split text with a recursive regular expression: a long word needs a deep stack.
READER_STACK_BYTES = 512 * 1024 * 1024
# Divisor: ended requests may keep a quarter of a unified key-value cache. Every used cell makes the attention of every
# step longer, on a CPU noticeably: a larger share costs running requests more than it saves later ones.
CACHED_SHARE = 4
USUAL_BYTES = 16  # per token; few texts have more

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
}
# Converts a request to an arrival for the loop, or refuses it and returns None.
Prepare = Callable[[Any], object | None]

log = logging.getLogger("worker")


def main() -> None:
    """Loads the model that the first message names and serves it until stopped."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    channel: BlockingChannel[ToWorker] = BlockingChannel(socket.socket(fileno=int(sys.argv[1])), ToWorker)
    load = channel.receive()
    if not isinstance(load, Load):
        raise SystemExit(f"the first message must be Load, not {type(load).__name__}")
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    prepares: queue.SimpleQueue[Prepare] = queue.SimpleQueue()
    threading.stack_size(READER_STACK_BYTES)
    threading.Thread(target=_read, args=(channel, prepares, inbox), name="reader", daemon=True).start()
    threading.stack_size(0)
    try:
        model = _loader(load.capability, load.runtime)(load.options, LoadingProgress(channel))
        loop = _server(load)(model, load.options, prepares, inbox, channel.send)
    except EngineError as error:
        channel.send(Failed(error.code, error.message))
        return
    channel.send(model.ready)
    loop.run()
    # Threads of native libraries may still run; there is no reason to wait for them.
    os._exit(0)


def _server(load: Load) -> Callable[..., RequestLoop | EmbeddingLoop]:
    """Returns the function that creates the loop for a model."""
    if load.capability == "embeddings":
        return _encoding
    return _scheduled if load.runtime == "vllm" else _generating


def _generating(
    runtime: Runtime,
    options: EngineOptions,
    prepares: queue.SimpleQueue[Prepare],
    inbox: Inbox,
    send: Callable[[object], None],
) -> BatchLoop:
    prepares.put(lambda submit: _prepare(runtime, submit, send))
    cells = runtime.ready.kv_tokens
    cached = (cells // CACHED_SHARE if runtime.shares_cells else cells) if options.prefix_cache else 0
    return BatchLoop(runtime, _limits(options, cached), inbox, send, _pace(runtime, options))


def _scheduled(
    model: Any,
    options: EngineOptions,
    prepares: queue.SimpleQueue[Prepare],
    inbox: Inbox,
    send: Callable[[object], None],
) -> RequestLoop:
    """Creates the loop for a model with its own scheduler."""
    from services.text.engine.runtimes.vllm.loop import VllmLoop  # noqa: PLC0415 (it is there where the model is)

    prepares.put(lambda submit: _prepare(model, submit, send))
    return VllmLoop(model, _limits(options, 0), inbox, send, model.pace(options))


def _limits(options: EngineOptions, cached: int) -> BatchLimits:
    return BatchLimits(options.max_sequences, options.batch_tokens, options.chunk_tokens, cached, options.queue_tokens)


def _pace(runtime: Runtime, options: EngineOptions) -> Pace:
    """Measures how many tokens a step may have on this machine."""

    def compute(tokens: int) -> None:
        runtime.step([Span(0, 0, [0] * tokens, None)])
        runtime.drop(0)

    return step_pace(options, runtime.ready.context_tokens, compute)


def _encoding(
    encoder: Encoder,
    options: EngineOptions,
    prepares: queue.SimpleQueue[Prepare],
    inbox: EmbeddingInbox,
    send: Callable[[object], None],
) -> EmbeddingLoop:
    prepares.put(lambda embed: embedding_inputs.prepare(encoder, embed, send))
    return EmbeddingLoop(encoder, options.batch_tokens, inbox, send, options.queue_tokens)


def _loader(capability: str, runtime: str) -> Callable[[EngineOptions, Callable[[float], None]], Any]:
    module, name = RUNTIMES[capability][runtime]
    try:
        loader: Callable[[EngineOptions, Callable[[float], None]], Any]
        loader = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        message = f"the runtime {runtime} cannot be used here: the Python package {error.name!r} is not installed"
        raise EngineError("UNSUPPORTED", message) from error
    return loader


def _read(
    channel: BlockingChannel[ToWorker], prepares: queue.SimpleQueue[Prepare], inbox: queue.SimpleQueue[Any]
) -> None:
    """Receives messages until the service ends. The service sends requests only after Ready."""
    prepare: Prepare | None = None
    try:
        while True:
            message = channel.receive()
            if isinstance(message, Submit | Embed):
                prepare = prepare or prepares.get()
                if arrival := prepare(message):
                    inbox.put(arrival)
            elif isinstance(message, Cancel | Hold):
                inbox.put(message)
            elif isinstance(message, Stop):
                os._exit(0)
    except ChannelClosed:
        os._exit(0)
    except BaseException:
        log.exception("the reader failed")
        os._exit(1)


def _prepare(runtime: Runtime, submit: Submit, send: Callable[[object], None]) -> Arrival | None:
    """Tokenizes a prompt, checks its length and compiles the grammar. Sends a refusal immediately."""
    try:
        tokens = _tokens(runtime, submit.prompt)
        refusal = _refusal(submit, len(tokens), runtime.ready.context_tokens)
        if refusal:
            send(refusal)
            return None
        constraint = runtime.constraint(submit.grammar) if submit.grammar else None
    except EngineError as error:
        send(Refused(request=submit.request, code=error.code, message=error.message, param=error.param))
        return None
    send(Accepted(submit.request, len(tokens), "" if isinstance(submit.prompt, str) else _text(runtime, tokens)))
    return Arrival(
        submit.request,
        submit.client,
        tokens,
        submit.sampling,
        constraint,
        submit.logprobs,
        submit.special,
        submit.cache_key,
        submit.deadline,
    )


def _tokens(runtime: Runtime, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        _check_size(runtime, len(prompt.encode()))
        return runtime.tokenize(prompt)
    for token in prompt:
        if not 0 <= token < runtime.ready.vocabulary:
            message = f"the prompt names token {token}; this model's tokens are 0 to {runtime.ready.vocabulary - 1}"
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
        message = f"the prompt has {size} bytes, {least} tokens at least, but this model's context holds {context}"
        raise EngineError("CONTEXT_LENGTH_EXCEEDED", message, "messages")


@functools.cache
def _longest(piece: Callable[[int, bool], bytes], vocabulary: int) -> int:
    """Returns the bytes of the longest token of a vocabulary."""
    return max(1, *(len(piece(token, True)) for token in range(vocabulary)))


def _text(runtime: Runtime, tokens: list[int]) -> str:
    return b"".join(runtime.piece(token, special=True) for token in tokens).decode(errors="replace")


def _refusal(submit: Submit, prompt: int, context: int) -> Refused | None:
    """Returns the refusal of a prompt that does not fit, with the numbers, or None if it fits."""
    wanted = submit.sampling.max_tokens or 0
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
    return Refused(request=submit.request, code=code, message=message, param=param)


if __name__ == "__main__":
    main()
