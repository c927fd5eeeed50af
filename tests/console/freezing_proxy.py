"""A proxy that forwards TCP until it silently stops: connections stay open, and nothing comes through them any more."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


class FreezingProxy:
    """Listens on `port` and forwards to another one of this machine. What was frozen stays so for good."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._frozen = threading.Event()  # of the connections that are made now
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for each in self._sockets:
            with suppress(OSError):  # it was ended already
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for each in self._sockets:
            each.close()

    def freeze(self) -> None:
        """From now on what is sent is lost, also on connections that are made."""
        self._frozen.set()

    def thaw(self) -> None:
        """Connections that are made from now on work; the others stay dead."""
        self._frozen = threading.Event()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=pump, args=(source, sink, self._frozen), daemon=True)
                self._threads.append(thread)
                thread.start()


def pump(source: socket.socket, sink: socket.socket, frozen: threading.Event) -> None:
    """Forwards one direction until it ends; loses everything once it is frozen."""
    with suppress(OSError):  # one of both is gone
        while part := source.recv(65536):
            if not frozen.is_set():
                sink.sendall(part)
        if not frozen.is_set():
            sink.shutdown(socket.SHUT_WR)
