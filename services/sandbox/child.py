"""The main program of a confined process: it limits itself, then carries out one order at a time. Its messages."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.sandbox import limits
from services.worker.channel import BlockingChannel, ChannelClosed


class Refusal(Exception):
    """The order cannot be carried out; `message` is for the caller, `param` names the parameter at fault."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildWork:
    """The work of a confined process, and its limits."""

    memory_bytes: int  # address space in addition to the use after the warm-up
    cpu_seconds: Callable[[Any], float]  # CPU time of an order
    answer: Callable[[Any], object]  # carries out an order and returns the last message about it; may raise Refusal
    no_memory: str  # refusal of an order that needs more memory


def run(orders: Any, prepare: Callable[[BlockingChannel[Any]], ChildWork], unusable: str = "") -> None:
    """Carries out orders until the service closes the channel, whose file descriptor is the first argument.

    Args:
        orders: union of the messages that the service sends.
        prepare: warms up, so that nothing is left to import, and returns the work.
        unusable: the reason why the process cannot work here, sent to the service; empty: it can.
    """
    sock = socket.socket(fileno=int(sys.argv[1]))
    channel: BlockingChannel[Any] = BlockingChannel(sock, orders)
    if unusable:
        channel.send(Unusable(unusable))
        return
    try:
        work = prepare(channel)
        limits.end_with(sock)
        limits.confine(work.memory_bytes)
        channel.send(ChildReady())
        while True:
            order = channel.receive()
            channel.send(Begun())
            limits.allow_cpu(work.cpu_seconds(order))
            channel.send(_answer(work, order))
    except ChannelClosed:
        return


def _answer(work: ChildWork, order: object) -> object:
    try:
        return work.answer(order)
    except Refusal as refusal:
        return OrderRefused(refusal.message, refusal.param)
    except MemoryError:
        return OrderRefused(work.no_memory)


@dataclass(frozen=True, slots=True)
class ChildReady:
    """First message: the process is ready for orders."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """First message of a process that cannot work here; `message` names the missing package."""

    message: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The process received an order and is about to read it: if it dies from now on, the order is the cause."""


@dataclass(frozen=True, slots=True)
class OrderRefused:
    """The answer to an order that cannot be carried out; `message` is for the caller."""

    message: str
    param: str = ""  # the request's parameter at fault; empty: not stated
