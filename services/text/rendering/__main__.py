"""A renderer process with one model's chat template: `python -m services.text.rendering FD`, run by the text service.

Templates come with models and are programs. Jinja's sandbox blocks access to other objects, but not endless loops or
texts that fill the memory. This process contains such templates: it has limited resources, opens no files, and ends
with the service.
"""

from __future__ import annotations

import datetime
import json
import socket
import sys
from typing import cast

from services.errors import InvalidRequest, ModelInvalid
from services.sandbox import limits as confinement
from services.sandbox.messages import Begun, Ready
from services.text.conversation import Message, ReasoningEffort, Tool
from services.text.prompt import ChatTemplate
from services.text.rendering.messages import (
    Answer,
    Broken,
    Prepare,
    Prepared,
    Refused,
    Render,
    Rendered,
    ToRenderer,
)
from services.worker.channel import BlockingChannel, ChannelClosed

MEMORY_BYTES = 1024 * 1024 * 1024  # in addition to the libraries; a conversation may have many megabytes
MAX_PROMPT = 32 * 1024 * 1024  # characters; the longest contexts need a fifth of it


def main() -> None:
    """Renders prompts until the service closes the channel."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    channel: BlockingChannel[ToRenderer] = BlockingChannel(sock, ToRenderer)
    try:
        _warm_up()
        confinement.end_with(sock)
        confinement.confine(MEMORY_BYTES)
        channel.send(Ready())
        _answer_all(channel)
    except ChannelClosed:
        return


def _answer_all(channel: BlockingChannel[ToRenderer]) -> None:
    template: ChatTemplate | None = None
    cpu_seconds = 0.0
    while True:
        order = channel.receive()
        channel.send(Begun())
        cpu_seconds = order.cpu_seconds if isinstance(order, Prepare) else cpu_seconds
        confinement.allow_cpu(cpu_seconds)
        if isinstance(order, Prepare):
            template, answer = _prepared(order)
        elif template is not None:
            answer = _rendered(template, order)
        else:
            raise SystemExit("a conversation came before its template")
        try:
            channel.send(answer)
        except UnicodeEncodeError:
            channel.send(Refused("the model's chat template makes half a character of this, which is no text"))


def _prepared(order: Prepare) -> tuple[ChatTemplate | None, Answer]:
    try:
        return ChatTemplate(order.source, bos=order.bos, eos=order.eos, add_bos=order.add_bos), Prepared()
    except ModelInvalid as error:
        return None, Broken(error.message)
    except MemoryError:
        return None, Broken("the model's chat template needs more memory than a template may have")


def _rendered(template: ChatTemplate, order: Render) -> Answer:
    tools = tuple(Tool(**tool) for tool in json.loads(order.tools))
    try:
        text = template.render(order.messages, tools, cast(ReasoningEffort, order.effort))
    except InvalidRequest as error:
        return Refused(error.message)
    if len(text) > MAX_PROMPT:
        return Refused(f"the model's chat template makes a prompt of more than {MAX_PROMPT} characters of this")
    return Rendered(text)


def _warm_up() -> None:
    """Renders a small conversation, so that all modules are imported and the time zone is read."""
    source = "{{ strftime_now('%Z') }}{{ messages | tojson }}{{ messages | pprint }}"
    ChatTemplate(source, bos="", eos="", add_bos=False).render((Message(role="user", content="Hello"),))
    datetime.datetime.now().astimezone()


if __name__ == "__main__":
    main()
