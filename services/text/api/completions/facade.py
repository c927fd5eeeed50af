"""The facade for POST /v1/completions."""

from __future__ import annotations

from typing import Any

from google.api import httpbody_pb2

from services.rest.openai import sse
from services.rest.openai.body import json_body
from services.rpc.call import Call
from services.text.api.completions.openai import LegacyWriter, read_request
from services.text.completion import Completion
from services.text.completions import CompletionRequest, Completions
from services.text.running_answer import Finished, TextDelta


async def create_completion(completions: Completions, request: httpbody_pb2.HttpBody, call: Call) -> None:
    """Sends one JSON body, or server-sent events if the request sets `stream`."""
    asked, wanted = read_request(request)
    call.model = await completions.model_id(wanted.model)
    async with completions.complete(wanted, call.client) as completion:
        head = {"id": completion.id, "created": completion.created, "model": completion.model_id}
        include_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        writer = LegacyWriter(head, logprobs=wanted.logprobs is not None, include_usage=include_usage)
        if asked.stream:
            await _stream(completion, writer, wanted if asked.echo else None, include_usage, call)
        else:
            await completion.whole()
            said = [choice.said for choice in completion.choices]
            echoes = [_echo(wanted, completion, index) if asked.echo else "" for index in range(len(said))]
            await call.send(json_body(writer.whole(said, echoes, completion.usage)))


async def _stream(
    completion: Completion, writer: LegacyWriter, echoed: CompletionRequest | None, include_usage: bool, call: Call
) -> None:
    begun: set[int] = set()
    while not completion.finished:
        events: list[dict[str, Any]] = []
        for index, event in await completion.ready():
            if index not in begun:
                begun.add(index)
                if echoed and (echo := _echo(echoed, completion, index)):
                    events.append(writer.chunk(index, echo))
            if isinstance(event, TextDelta):
                events.append(writer.chunk(index, event.text, event.logprobs))
            elif isinstance(event, Finished):
                events.append(writer.chunk(index, "", finish=event.reason))
        if completion.finished and include_usage:
            events.append(writer.usage(completion.usage))
        end = (sse.DONE,) if completion.finished else ()
        await call.send(sse.body((*map(sse.data, events), *end)))


def _echo(wanted: CompletionRequest, completion: Completion, index: int) -> str:
    """Returns a choice's prompt as text. The choice must have begun: the worker decodes prompts given as tokens."""
    prompt = wanted.prompts[index // wanted.choices]
    return prompt if isinstance(prompt, str) else completion.choices[index].prompt
