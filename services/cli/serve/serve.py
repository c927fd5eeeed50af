"""`allm serve`: all of allm on one machine, until it is stopped; and its terminal output."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shlex
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from allm.models.v1 import model_pb2
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.address import confined, is_confined, is_loopback
from services.auth.identity_keys import ROLES, KeysUnusable, create_keys
from services.cli.models.page import reason_word
from services.cli.problem import Problem
from services.cli.serve.ports import choose_port, default_port
from services.cli.serve.process import first_of
from services.cli.serve.register import DefaultModels
from services.cli.serve.run_folder import RunNote, run_folder
from services.cli.serve.stack import AUDIO, CATALOG, IMAGE, TEXT, Stack, authorizer_names, names, with_listener
from services.cli.serve.supervisor import Supervisor
from services.models.demo.copied_demo import ENCODER, RERANKER, SHAPES, WHISPER
from services.models.demo.text_demo import DEMO_ID, SAFETENSORS_DEMO_ID
from services.settings.gateway_settings import AuthSettings
from services.settings.setting import SettingError
from services.settings.settings import Settings, load_settings, unknown_settings
from services.settings.trace_settings import ENDPOINT, EXTRA
from services.text.runtime_availability import BUILDS, llama_library

OPEN = "Warning: ALLM_AUTH=open requires no API keys; anyone who can reach this machine may use the models."
KEYS = (
    "Every call needs an API key, as `Authorization: Bearer sk-allm-...`. Create the first one:\n"
    "allm keys create me --scope inference --scope admin"
)
CURL_WITH_KEY = 'curl -H "Authorization: Bearer $ALLM_API_KEY" '
MIB = 1024 * 1024
NO_MODELS = "none: fetch one with `allm pull ORG/NAME`, or install small ones: pip install 'allm-server[demo]'"
MAX_SHOWN = 20
RECORDING = Path(__file__).parents[3] / "examples" / "speech.wav"  # in a clone
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
    recording = shlex.quote(f"file=@{RECORDING if RECORDING.exists() else RECORDING.name}")  # any of the user's own
    return f"curl {base_url}/audio/transcriptions -F model={model} -F {recording}"


def _image(base_url: str, model: str) -> str:
    # With `url` a browser can show the image: base64 would fill the terminal.
    body = json.dumps({"model": model, "prompt": "a red circle on a blue background", "response_format": "url"})
    return f"curl {base_url}/images/generations -H 'content-type: application/json' -d '{body}'"


def _chat(base_url: str, model: str) -> str:
    # Small models ramble at OpenAI's default temperature of 1; the first answer should be the good one.
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body = json.dumps({"model": model, "temperature": 0, "messages": messages})
    return f"curl {base_url}/chat/completions -H 'content-type: application/json' -d '{body}'"


# The packages of the extra `audio`, which the audio service and its processes import.
AUDIO_PACKAGES = ("av", "faster_whisper", "numpy", "python_multipart", "tiktoken")
NO_AUDIO = "The audio service is not installed: pip install 'allm-server[audio]', or set ALLM_AUDIO_REPLICAS=0"
# The packages of the extra `image`.
IMAGE_PACKAGES = ("PIL", "diffusers", "peft", "python_multipart", "safetensors", "torch", "transformers")
NO_IMAGE = "The image service is not installed: pip install 'allm-server[image]', or set ALLM_IMAGE_REPLICAS=0"


# The packages of the extra `traces`, which every service needs to make traces.
TRACES_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")
DEMO_IDS = (DEMO_ID, SAFETENSORS_DEMO_ID, ENCODER.id, RERANKER.id, WHISPER.id, SHAPES.id)
CONFINED = (
    "Warning: ALLM_HOST={host} is ignored, the gateway listens on 127.0.0.1: anyone who can reach it could use the "
    "models. Set ALLM_AUTH=keys for API keys, or ALLM_AUTH=open if another system protects it (docs/keys.md)."
)
MOVES = "llama.cpp for {kind} is new: the text service restarts with it once its running requests have ended"
LIBRARY_SECONDS = 2.0  # between two looks for new builds of llama.cpp
NOTE_SECONDS = 2.0  # until a failed write of `run.json` is retried
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def check_traces(settings: Settings) -> None:
    """Raises SettingError if traces are enabled but their packages are missing: no service would start."""
    if settings.trace.wanted and not _installed(TRACES_PACKAGES):
        raise SettingError(ENDPOINT, "...", EXTRA)


def with_installed(settings: Settings, say: Callable[[str], None]) -> Settings:
    """Disables the services whose packages are missing, and reports each."""
    if settings.audio_replicas and not _installed(AUDIO_PACKAGES):
        say(NO_AUDIO)
        settings = replace(settings, audio_replicas=0)
    if settings.image_replicas and not _installed(IMAGE_PACKAGES):
        say(NO_IMAGE)
        settings = replace(settings, image_replicas=0)
    return settings


def _installed(packages: Sequence[str]) -> bool:
    try:
        return all(map(importlib.util.find_spec, packages))  # imports nothing
    except ModuleNotFoundError:  # the parent package is missing, too
        return False


def serve(environ: Mapping[str, str], version: str, screen: Screen) -> None:
    """Serves until SIGINT or SIGTERM.

    Raises:
        SettingError: a variable of `environ` is invalid.
        Problem: it cannot start.
    """
    settings = with_installed(load_settings(environ), screen.say)
    for name, similar in unknown_settings(environ).items():
        if similar:
            raise Problem(f"{name} is not a setting: did you mean {similar}? docs/settings.md lists all")
        screen.say(f"Warning: {name} is not a setting and has no effect")
    check_traces(settings)
    if is_confined(settings.gateway):
        screen.say(CONFINED.format(host=settings.gateway.host))
    with run_folder(settings.home) as folder:
        host = confined(settings.gateway).host
        port = choose_port(host, settings.gateway.port, "ALLM_PORT")
        settings = _with_demo(_with_gateway_metrics(with_listener(settings, host, port), environ))
        if settings.auth.keys:
            _make_keys(settings.auth)
        stack = Stack(settings, folder, environ, _metrics_ports(settings, environ), screen.say)
        asyncio.run(_Run(stack, version, screen).until_stopped())


def _make_keys(auth: AuthSettings) -> None:
    """Creates the keys of identities that are missing; the services read them when they start."""
    try:
        create_keys({role: auth.key_file_of(role) for role in ROLES}, auth.public_keys_file)
    except KeysUnusable as error:
        raise Problem(str(error)) from error


def _with_demo(settings: Settings) -> Settings:
    """Adds the demos' folders to the roots, in case ALLM_MODEL_ROOTS leaves them out."""
    model = settings.model
    folders = [model.folder / name for name in DEMO_IDS]
    if (
        settings.models
        or model.models_file
        or all(any(folder.is_relative_to(root) for root in model.roots) for folder in folders)
    ):
        return settings
    return replace(settings, model=replace(model, roots=(*model.roots, *folders)))


def _with_gateway_metrics(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Chooses the port of the gateway's own metrics."""
    gateway = settings.gateway
    port = default_port(gateway.stats_host, gateway.stats_port, "ALLM_GATEWAY_METRICS_PORT", environ)
    return replace(settings, gateway=replace(gateway, stats_port=port))


def _metrics_ports(settings: Settings, environ: Mapping[str, str]) -> dict[str, int]:
    """Returns the metrics ports: the first text service gets that of the settings, the others free ones."""
    host, port = settings.service.metrics_host, settings.service.metrics_port
    first, *others = (
        *names(TEXT, settings.text_replicas),
        *names(AUDIO, settings.audio_replicas),
        *names(IMAGE, settings.image_replicas),
    )
    return {
        first: default_port(host, port, "ALLM_METRICS_PORT", environ),
        **{name: choose_port(host, 0, "ALLM_METRICS_PORT") for name in (*others, CATALOG, *authorizer_names(settings))},
    }


class _Run:
    """One run of the stack."""

    def __init__(self, stack: Stack, version: str, screen: Screen) -> None:
        self._stack = stack
        self._version = version
        self._screen = screen
        self._signals = 0
        self._ready = False  # whether the models of the settings are registered
        self._children: dict[str, int] = {}
        self._registrar = DefaultModels(stack.catalog_address, stack.settings, screen.say)
        self._stop = asyncio.Event()  # the first signal
        self._kill = asyncio.Event()  # the second
        self._logs = stack.settings.home / "logs"
        hang_seconds = stack.settings.service.hang_seconds
        self._supervisor = Supervisor(stack.services(), self._logs, screen.say, self._note, hang_seconds)
        self._libraries = _libraries(stack.settings)

    async def until_stopped(self) -> None:
        """Starts everything, waits for a signal, and stops everything."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                loop.add_signal_handler(number, self._on_signal)
        try:
            if await _unless(self._stop, self._start()) and await _unless(self._stop, self._start_late()):
                await _unless(self._stop, self._use_new_libraries())
            self._screen.say("Stopping.")
            await _unless(self._kill, self._supervisor.stop())
        finally:
            await self._supervisor.kill()  # remaining children; usually none
            self._supervisor.close()

    async def _start(self) -> None:
        with self._screen.step(f"Starting the catalog, {_services(self._stack.settings)} and the gateway"):
            await self._supervisor.start()
        with self._screen.step("Looking for models"):
            models = await self._registrar.register()
        self._screen.serving(self._version, self._stack, models, self._logs)
        self._ready = True
        self._note(self._children)

    async def _start_late(self) -> None:
        """Registers the optional models once everything serves; a failure is only reported."""
        try:
            await self._registrar.register_late()
        except Problem as problem:
            self._screen.say(str(problem))

    async def _use_new_libraries(self) -> None:
        """Restarts the text services whenever a build of llama.cpp for a GPU is new. `make serve` builds meanwhile."""
        settings = self._stack.settings
        while True:
            await asyncio.sleep(LIBRARY_SECONDS)
            found = _libraries(settings)
            new = [kind for kind, folder in found.items() if folder != self._libraries.get(kind)]
            self._libraries = found
            if new:
                self._screen.say(MOVES.format(kind=" and ".join(new)))
                await self._supervisor.renew(names(TEXT, settings.text_replicas), settings.service.drain_seconds)

    def _on_signal(self) -> None:
        self._signals += 1
        (self._stop if self._signals == 1 else self._kill).set()

    def _note(self, children: dict[str, int]) -> None:
        """Writes the run note. A failed write is retried, and serving continues."""
        stack, self._children = self._stack, children
        note = RunNote(
            pid=os.getpid(),
            base_url=stack.base_url,
            grpc=stack.grpc_address,
            metrics=stack.metrics_urls,
            folder=str(stack.folder),
            children=children,
            ready=self._ready,
            local=stack.local_address,
        )
        try:
            note.write(stack.settings.home)
        except OSError:
            asyncio.get_running_loop().call_later(NOTE_SECONDS, lambda: self._note(self._children))


def _libraries(settings: Settings) -> dict[str, int]:
    """Returns the builds of llama.cpp for GPUs that the text service may use: the inode of each kind's folder."""
    kinds = BUILDS if settings.text.device == "auto" else [kind for kind in BUILDS if kind == settings.text.device]
    folders = {kind: llama_library(kind, settings.text.llama_libraries) for kind in kinds}
    found = {}
    for kind, folder in folders.items():
        with suppress(OSError):  # replaced at this moment
            if folder:
                found[kind] = folder.stat().st_ino
    return found


def _services(settings: Settings) -> str:
    replicas = {"text": settings.text_replicas, "audio": settings.audio_replicas, "image": settings.image_replicas}
    *names, last = [name for name, count in replicas.items() if count]
    return f"the {', '.join(names)} and {last} services" if names else f"the {last} service"


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Runs `work` unless `event` comes first; returns whether the work was done."""
    done, _ = await first_of(work, event.wait())
    if done:
        done.result()
    return bool(done)
