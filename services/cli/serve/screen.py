"""The terminal output of `allm serve`: slow steps, one table, commands to try, and later problems."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from allm.models.v1 import model_pb2
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.address import is_loopback
from services.cli.models.page import reason_word
from services.cli.serve.stack import Stack

OPEN = "Warning: ALLM_AUTH=open requires no API keys; anyone who can reach this machine may use the models."
KEYS = (
    "Every call needs an API key, as `Authorization: Bearer sk-allm-...`. Create the first one:\n"
    "allm keys create me --scope inference --scope admin"
)
CURL_WITH_KEY = 'curl -H "Authorization: Bearer $ALLM_KEY" '
MIB = 1024 * 1024
NO_MODELS = "none: register one with `allm models add`, or install a small one: pip install 'allm-server[demo]'"
MAX_SHOWN = 20
RECORDING = "speech.wav"  # a placeholder for any recording
USABLE = (model_pb2.MODEL_STATE_READY, model_pb2.MODEL_STATE_LOADED)


class Screen:
    """Writes to a terminal; plain lines elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def say(self, line: str) -> None:
        """Prints one line, without markup."""
        self._console.print(escape(line), soft_wrap=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Shows that a step is running: a spinner on a terminal, a line elsewhere."""
        if self._console.is_terminal:
            with self._console.status(what):
                yield
        else:
            self.say(f"{what} ...")
            yield

    def serving(self, version: str, stack: Stack, models: list[model_pb2.Model], logs: Path) -> None:
        """Prints all that a user of the running stack needs."""
        table = Table(title=f"allm {version} is serving", title_justify="left", show_header=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        if stack.settings.gateway.console:
            table.add_row("In a browser", stack.base_url.removesuffix("v1"))
        table.add_row("OpenAI REST", stack.base_url)
        table.add_row("gRPC", stack.grpc_address)
        for name, url in stack.metrics_urls.items():
            table.add_row("Metrics", f"{url} ({name})")
        table.add_row("Logs", escape(str(logs)))
        table.add_section()
        for model in models[:MAX_SHOWN]:
            table.add_row("Model", escape(_describe(model)))
        if len(models) > MAX_SHOWN:
            table.add_row("", f"and {len(models) - MAX_SHOWN} more: allm models list")
        if not models:
            table.add_row("Models", escape(NO_MODELS))
        self._console.print(table)
        tries = list(_tries(stack.base_url, models))
        if stack.settings.auth.keys:
            self.say(KEYS)
            tries = [line.replace("curl ", CURL_WITH_KEY, 1) for line in tries]
        if tries:
            self.say("\n".join(("Try it:", *tries)))
        if not stack.settings.auth.keys and not is_loopback(stack.settings.gateway.host):
            self.say(OPEN)
        self.say("Ctrl-C stops it.")


def _describe(model: model_pb2.Model) -> str:
    state = model_pb2.ModelState.Name(model.state).removeprefix("MODEL_STATE_").lower()
    facts = [f"{model.size_bytes / MIB:,.0f} MiB"]
    if model.context_tokens:
        facts.append(f"{model.context_tokens:,} tokens")
    if model.reason:
        facts = [reason_word(model.reason, model.id)]
    return f"{model.id} - {state} ({', '.join(facts)})"


def _tries(base_url: str, models: Iterable[model_pb2.Model]) -> Iterator[str]:
    """Yields a command for each capability of the models."""
    usable = [model for model in models if model.state in USABLE]
    for capability, curl in (("chat", _chat), ("transcription", _transcription), ("image", _image)):
        able = next((model.id for model in usable if capability in model.capabilities), None)
        if able:
            yield curl(base_url, able)


def _transcription(base_url: str, model: str) -> str:
    return f"curl {base_url}/audio/transcriptions -F model={model} -F file=@{RECORDING}"


def _image(base_url: str, model: str) -> str:
    # With `url` a browser can show the image: base64 would fill the terminal.
    body = json.dumps({"model": model, "prompt": "a red circle on a blue background", "response_format": "url"})
    return f"curl {base_url}/images/generations -H 'content-type: application/json' -d '{body}'"


def _chat(base_url: str, model: str) -> str:
    # Small models ramble at OpenAI's default temperature of 1; the first answer should be the good one.
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body = json.dumps({"model": model, "temperature": 0, "messages": messages})
    return f"curl {base_url}/chat/completions -H 'content-type: application/json' -d '{body}'"
