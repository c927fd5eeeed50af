"""A renderer process with one model's chat template: `python -m services.text.rendering FD`, run by the text service.

Templates come with models and are programs. Jinja's sandbox blocks access to other objects, but not endless loops or
texts that fill the memory. This process contains such templates: it has limited resources, opens no files, and ends
with the service.
"""

from __future__ import annotations

import datetime
import json
from typing import cast

from services.errors import InvalidRequest, ModelInvalid
from services.sandbox import child
from services.sandbox.child import Refusal
from services.text.conversation import Message, ReasoningEffort, Tool
from services.text.prompt import ChatTemplate
from services.text.rendering.messages import Prepare, Prepared, Render, Rendered, ToRenderer
from services.worker.channel import BlockingChannel

MEMORY_BYTES = 1024 * 1024 * 1024  # in addition to the libraries; a conversation may have many megabytes
MAX_PROMPT = 32 * 1024 * 1024  # characters; the longest contexts need a fifth of it


class _Renderer:
    """The template, from the first order on."""

    def __init__(self) -> None:
        self._template: ChatTemplate | None = None
        self._cpu_seconds = 0.0

    def cpu_seconds(self, order: ToRenderer) -> float:
        """Returns the processor time of an order."""
        if isinstance(order, Prepare):
            self._cpu_seconds = order.cpu_seconds
        return self._cpu_seconds

    def answer(self, order: ToRenderer) -> Prepared | Rendered:
        """Compiles the template, or renders a conversation. Raises Refusal."""
        if isinstance(order, Prepare):
            self._template = _compiled(order)
            return Prepared()
        if self._template is None:
            raise SystemExit("a conversation came before its template")
        return Rendered(_rendered(self._template, order))


def main() -> None:
    """Renders prompts until the service closes the channel."""
    child.run(ToRenderer, _prepare)


def _prepare(_: BlockingChannel[ToRenderer]) -> child.Work:
    _warm_up()
    renderer = _Renderer()
    return child.Work(
        memory_bytes=MEMORY_BYTES,
        cpu_seconds=renderer.cpu_seconds,
        answer=renderer.answer,
        no_memory="the model's chat template needs more memory than a template may have",
    )


def _compiled(order: Prepare) -> ChatTemplate:
    try:
        return ChatTemplate(order.source, bos=order.bos, eos=order.eos, add_bos=order.add_bos)
    except ModelInvalid as error:
        raise Refusal(_sendable(error.message)) from None


def _rendered(template: ChatTemplate, order: Render) -> str:
    tools = tuple(Tool(**tool) for tool in json.loads(order.tools))
    try:
        text = template.render(order.messages, tools, cast(ReasoningEffort, order.effort))
    except InvalidRequest as error:
        raise Refusal(_sendable(error.message)) from None
    if len(text) > MAX_PROMPT:
        raise Refusal(f"the model's chat template makes a prompt of more than {MAX_PROMPT} characters")
    return _sendable(text)


def _sendable(text: str) -> str:
    """Returns the text, or refuses it if it has half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refusal("the model's chat template produces half a character, which is not text") from None
    return text


def _warm_up() -> None:
    """Renders a small conversation, so that all modules are imported and the time zone is read."""
    source = "{{ strftime_now('%Z') }}{{ messages | tojson }}{{ messages | pprint }}"
    ChatTemplate(source, bos="", eos="", add_bos=False).render((Message(role="user", content="Hello"),))
    datetime.datetime.now().astimezone()


if __name__ == "__main__":
    main()
