"""The facade for POST /v1/completions."""

from __future__ import annotations

from typing import Any

from google.api import httpbody_pb2

from services.rest.openai import sse
from services.rest.openai.body import json_body
from services.rpc.call import Call
from services.text.api.completions.openai import LegacyWriter, read_request
from services.text.completions import CompletionRequest, Completions
from services.text.manager import TextModels
from services.text.parsers.events import Finished, TextDelta
from services.text.running_answer import Completion


async def create_completion(
    models: TextModels, completions: Completions, raw: httpbody_pb2.HttpBody, call: Call
) -> None:
    """Sends one JSON body, or server-sent events if the request sets `stream`."""
    body, request = read_request(raw)
    stored = await models.find(request.model)
    call.model = stored.id
    async with completions.complete(stored, request, call.client) as completion:
        head = {"id": completion.id, "created": completion.created, "model": completion.model_id}
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        writer = LegacyWriter(head, logprobs=request.logprobs is not None, include_usage=include_usage)
        if body.stream:
            await _stream(completion, writer, request if body.echo else None, include_usage, call)
        else:
            await completion.whole()
            answers = [choice.content for choice in completion.choices]
            echoes = [_echo(request, completion, index) if body.echo else "" for index in range(len(answers))]
            await call.send(json_body(writer.whole(answers, echoes, completion.usage)))
        call.facts["usage"] = completion.usage.facts


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


def _echo(request: CompletionRequest, completion: Completion, index: int) -> str:
    """Returns a choice's prompt as text. The choice must have begun: the worker decodes prompts given as tokens."""
    prompt = request.prompts[index // request.choices]
    return prompt if isinstance(prompt, str) else completion.choices[index].prompt
