"""A worker without a model that obeys messages. Started as `python -m tests.worker.toy_worker FD`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from services.worker.channel import BlockingChannel, ChannelClosed


@dataclass(frozen=True)
class Say:
    """Sends the text back in an Echo."""

    text: str


@dataclass(frozen=True)
class Environ:
    """Sends the value of an environment variable in an Echo."""

    name: str


@dataclass(frozen=True)
class Log:
    """Writes to stderr."""

    text: str


@dataclass(frozen=True)
class Exit:
    """Ends the process; `linger`: seconds between the end of the channel and that of the process."""

    code: int
    linger: float = 0.0


@dataclass(frozen=True)
class Hang:
    """Closes the channel and keeps running."""


@dataclass(frozen=True)
class Deafen:
    """Stays connected and ignores SIGTERM and every later message."""


@dataclass(frozen=True)
class Breed:
    """Starts a child that stops itself, and sends its process id in an Echo."""


@dataclass(frozen=True)
class Stop:
    """Exits with code 0."""


@dataclass(frozen=True)
class Garbage:
    """Writes raw bytes to the channel."""

    data: bytes


@dataclass(frozen=True)
class Echo:
    """A text answer."""

    text: str


ToToy = Say | Environ | Log | Exit | Hang | Deafen | Breed | Stop | Garbage
FromToy = Echo


def main() -> None:
    """Serves messages until one ends the process."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    channel: BlockingChannel[ToToy] = BlockingChannel(sock, ToToy)
    try:
        while True:
            obey(channel.receive(), channel, sock)
    except ChannelClosed:
        os._exit(0)


def obey(message: ToToy, channel: BlockingChannel[ToToy], sock: socket.socket) -> None:
    """Handles one message."""
    match message:
        case Say(text):
            channel.send(Echo(text))
        case Environ(name):
            channel.send(Echo(os.environ.get(name, "")))
        case Log(text):
            sys.stderr.write(text)
            sys.stderr.flush()
        case Exit(code, linger):
            sock.close()
            time.sleep(linger)
            os._exit(code)
        case Hang():
            sock.close()
            threading.Event().wait()
        case Deafen():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            channel.send(Echo("deaf"))
            threading.Event().wait()
        case Breed():
            code = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
            channel.send(Echo(str(subprocess.Popen([sys.executable, "-c", code]).pid)))
        case Stop():
            os._exit(0)
        case Garbage(data):
            sock.sendall(data)


if __name__ == "__main__":
    main()
