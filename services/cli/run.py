"""`allm run`: chats with a model in the terminal, or answers one prompt.

On a terminal, answers are Markdown: finished paragraphs are printed, the one that is being written is drawn anew with
each piece. Elsewhere the answer is printed as the model writes it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from allm.text.v1 import chat_pb2, chat_service_pb2
from google.protobuf.descriptor import FieldDescriptor
from rich.console import Console, Group
from rich.live import Live
from rich.markdown import Markdown
from rich.spinner import Spinner
from rich.text import Text

from services.cli.models.catalog import Session
from services.cli.models.connection import by_model, readable_errors
from services.cli.models.page import document, print_document
from services.cli.problem import Problem
from services.storage import make_private, private_folder

HISTORY_NAME = "history"
HISTORY_LINES = 1000
FENCE = "```"
BLOCK = '"""'
UNSAFE = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}  # terminal controls
NUMBERS = {
    field.name: float if field.type == FieldDescriptor.TYPE_FLOAT else int
    for field in chat_pb2.SamplingParameters.DESCRIPTOR.fields
    if not field.is_repeated and field.type != FieldDescriptor.TYPE_BOOL
}
# A path of a picture in a prompt, such as one that was dropped on the terminal: in quotes, or with escaped spaces.
PICTURE_PATH = re.compile(
    r"""(?<!\S)(?:(['"])(?P<quoted>(?:~|\.{1,2})?/.+?\.(?:gif|jpe?g|png|webp))\1"""
    r"""|(?P<bare>(?:~|\.{1,2})?/(?:\\.|[^\s\\'"])*?\.(?:gif|jpe?g|png|webp))(?!\w))""",
    re.IGNORECASE,
)
HELP = f"""\
/set system TEXT    the system prompt
/set NAME VALUE     one of {", ".join(NUMBERS)}
/unset NAME         back to the model's own value
/show               what is set
/clear              forget the conversation
/bye                end; so does Ctrl-D
{BLOCK}                 begins and ends a text of several lines
Ctrl-C              stops an answer
./PICTURE.png       in a prompt: shows the model that picture"""


class Chat:
    """A conversation with a model. A request that fails leaves it as it was."""

    def __init__(self, session: Session, model: str, settings: Sequence[str] = ()) -> None:
        """Raises Problem for a setting that is not `NAME=VALUE`."""
        self._stub = session.connection.chat
        self._model = model
        self._messages: list[chat_pb2.ChatMessage] = []
        self.system = ""
        self.values: dict[str, Any] = {}  # of the sampling parameters
        for each in settings:
            name, mark, value = each.partition("=")
            if not mark:
                raise Problem(f"--set {each} must be NAME=VALUE")
            self.set(name.strip(), value.strip())

    def set(self, name: str, value: str) -> None:
        """Sets a parameter of the following requests. Raises Problem for an unknown one or a wrong value."""
        if name == "system":
            self.system = value
            return
        self._known(name)
        try:
            number: Any = NUMBERS[name](value)
            chat_pb2.SamplingParameters(**{name: number})  # in the range of its type
        except (ValueError, OverflowError):
            kind = "an integer" if NUMBERS[name] is int else "a number"
            raise Problem(f"{name} must be {kind}, not {value or 'nothing'}") from None
        self.values[name] = number

    def unset(self, name: str) -> None:
        """Removes a parameter. Raises Problem for an unknown one."""
        if name == "system":
            self.system = ""
        else:
            self._known(name)
            self.values.pop(name, None)

    def clear(self) -> None:
        """Forgets the conversation."""
        self._messages.clear()

    def whole(self, prompt: str, pictures: Sequence[bytes] = ()) -> chat_service_pb2.CreateChatCompletionResponse:
        """Returns the whole answer to a prompt, with the files of its pictures. Raises Problem."""
        request = chat_service_pb2.CreateChatCompletionRequest(
            model=self._model,
            messages=self._with(prompt, pictures),
            sampling=chat_pb2.SamplingParameters(**self.values),
        )
        with readable_errors():
            return self._stub.CreateChatCompletion(request, metadata=by_model(self._model))

    def ask(self, prompt: str, pictures: Sequence[bytes] = ()) -> Iterator[chat_service_pb2.ChatDelta]:
        """Yields the parts of the answer, and keeps it, as far as it has been written. Raises Problem."""
        messages = self._with(prompt, pictures)
        request = chat_service_pb2.StreamChatCompletionRequest(
            model=self._model, messages=messages, sampling=chat_pb2.SamplingParameters(**self.values)
        )
        parts: list[str] = []
        call = self._stub.StreamChatCompletion(request, metadata=by_model(self._model))
        try:
            with readable_errors():
                for event in call:
                    if event.HasField("delta"):
                        parts.append(event.delta.text)
                        yield event.delta
            self._keep(messages[-1], parts)
        except KeyboardInterrupt:
            self._keep(messages[-1], parts)
            raise
        finally:
            call.cancel()

    def _with(self, prompt: str, pictures: Sequence[bytes]) -> list[chat_pb2.ChatMessage]:
        system = [_message(chat_pb2.CHAT_ROLE_SYSTEM, self.system)] if self.system else []
        return [*system, *self._messages, _message(chat_pb2.CHAT_ROLE_USER, prompt, pictures)]

    def _keep(self, message: chat_pb2.ChatMessage, parts: Sequence[str]) -> None:
        self._messages += [message, _message(chat_pb2.CHAT_ROLE_ASSISTANT, "".join(parts))]

    @staticmethod
    def _known(name: str) -> None:
        if name not in NUMBERS:
            raise Problem(f"{name} is none of system, {', '.join(NUMBERS)}")


def _message(role: chat_pb2.ChatRole.ValueType, text: str, pictures: Sequence[bytes] = ()) -> chat_pb2.ChatMessage:
    parts = [chat_pb2.ContentPart(image=chat_pb2.ImagePart(data=data)) for data in pictures]
    return chat_pb2.ChatMessage(role=role, content=[*parts, *([chat_pb2.ContentPart(text=text)] if text else [])])


def read_picture(path: Path) -> bytes:
    """Returns a picture's file. Raises Problem if it cannot be read."""
    try:
        if data := path.expanduser().read_bytes():
            return data
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        raise Problem(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    raise Problem(f"{path} is empty")


def split_prompt(prompt: str) -> tuple[str, list[Path]]:
    """Splits a prompt into its text and the paths of existing pictures in it."""
    paths: list[Path] = []

    def take(found: re.Match[str]) -> str:
        path = Path(found["quoted"] or re.sub(r"\\(.)", r"\1", found["bare"]))
        with suppress(OSError, RuntimeError):
            if path.expanduser().is_file():
                paths.append(path)
                return ""
        return found[0]

    return PICTURE_PATH.sub(take, prompt).strip(), paths


def answer(chat: Chat, prompt: str, pictures: Sequence[bytes] = (), *, as_json: bool) -> None:
    """Prints the answer to one prompt. Raises Problem."""
    if as_json:
        print_document(document(chat.whole(prompt, pictures)))
    elif sys.stdout.isatty():
        _draw(chat, prompt, pictures, Console(highlight=False))
    else:
        for delta in chat.ask(prompt, pictures):
            sys.stdout.write(delta.text)
            sys.stdout.flush()
        sys.stdout.write("\n")


def converse(chat: Chat, home: Path, pictures: Sequence[bytes] = ()) -> None:
    """Asks for prompts and prints the answers until /bye or Ctrl-D. The first prompt has the pictures.

    The history of prompts is kept in `home`.
    """
    console = Console(highlight=False)
    console.print("Ask something. /? shows the commands, Ctrl-D ends.", style="dim")
    with _history(home / HISTORY_NAME):
        while (prompt := _read()) is not None:
            try:
                text, paths = split_prompt(prompt)
                if text.startswith("/") and not paths:
                    if not _command(chat, prompt, console):
                        return
                elif prompt.strip():
                    for path in paths:
                        console.print(Text(f"with the picture {path}"), style="dim")
                    _draw(chat, text, [*pictures, *map(read_picture, paths)], console)
                    pictures = ()
            except KeyboardInterrupt:
                pictures = ()  # they are in the conversation
                console.print("stopped", style="dim")
            except Problem as problem:
                console.print(Text(f"allm: {problem}"), style="red")


def _read() -> str | None:
    """Returns the next prompt; None at the end of the input. Ctrl-C empties the line."""
    with suppress(EOFError):
        while True:
            try:
                line = input(">>> ")
                if not line.startswith(BLOCK):
                    return line
                lines = [line.removeprefix(BLOCK)]
                while not lines[-1].rstrip().endswith(BLOCK):
                    lines.append(input("... "))
                return "\n".join(lines).rstrip().removesuffix(BLOCK)
            except KeyboardInterrupt:
                print()
    print()
    return None


def _command(chat: Chat, line: str, console: Console) -> bool:
    """Performs a command; returns whether the conversation goes on. Raises Problem for a wrong one."""
    word, _, rest = line[1:].strip().partition(" ")
    name, _, value = rest.strip().partition(" ")
    match word:
        case "bye" | "exit" | "quit":
            return False
        case "set" if name:
            chat.set(name, value.strip())
        case "unset" if name:
            chat.unset(name)
        case "show" | "set":
            shown = {"system": chat.system} if chat.system else {}
            shown |= {key: f"{value:g}" for key, value in chat.values.items()}
            console.print(Text("\n".join(f"{key}  {value}" for key, value in shown.items()) or "nothing is set"))
        case "clear":
            chat.clear()
        case "help" | "?" | "":
            console.print(Text(HELP))
        case _:
            raise Problem(f"/{word} is not a command; /? shows them")
    return True


def _draw(chat: Chat, prompt: str, pictures: Sequence[bytes], console: Console) -> None:
    """Draws an answer while it is written. Raises Problem, and KeyboardInterrupt after what has been written."""
    thoughts = text = ""
    try:
        with Live(Spinner("dots"), console=console, transient=True, refresh_per_second=8) as live:
            for delta in chat.ask(prompt, pictures):
                thoughts += delta.reasoning.translate(UNSAFE)
                text += delta.text.translate(UNSAFE)
                if text and thoughts:
                    console.print(Text(thoughts, style="dim"))
                    thoughts = ""
                done = finished(text)
                if done:
                    console.print(Markdown(text[:done]))
                    text = text[done:]
                live.update(Group(Text(thoughts, style="dim"), Markdown(text)))
    finally:
        if thoughts:
            console.print(Text(thoughts, style="dim"))
        if text:
            console.print(Markdown(text))


def finished(text: str) -> int:
    """Returns the length of the finished paragraphs and code blocks at the beginning of a Markdown text."""
    end = at = 0
    fenced = False
    for line in text.splitlines(keepends=True)[:-1]:
        at += len(line)
        if line.lstrip().startswith(FENCE):
            fenced = not fenced
        if not fenced and (not line.strip() or line.lstrip().startswith(FENCE)):
            end = at
    return end


@contextmanager
def _history(path: Path) -> Iterator[None]:
    """Edits lines with the prompts of earlier conversations, where the platform has readline."""
    try:
        import readline  # noqa: PLC0415 (not on every platform)
    except ImportError:
        yield
        return
    readline.set_history_length(HISTORY_LINES)
    with suppress(OSError):
        private_folder(path.parent)
        path.touch(mode=0o600)
        make_private(path)
        readline.read_history_file(path)
    try:
        yield
    finally:
        with suppress(OSError):
            readline.write_history_file(path)
