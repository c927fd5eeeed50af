"""A TCP proxy that can freeze: connections stay open, but no more data passes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


class FreezingProxy:
    """Listens on `port` and forwards to another port of this machine. A frozen connection never recovers."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._frozen = threading.Event()  # for new connections
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
            with suppress(OSError):  # it was shut down already
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for each in self._sockets:
            each.close()

    def freeze(self) -> None:
        """Discards all data from now on, also on new connections."""
        self._frozen.set()

    def thaw(self) -> None:
        """Lets new connections work; frozen ones stay dead."""
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
    """Forwards one direction until it ends; discards the data once it is frozen."""
    with suppress(OSError):  # either socket is gone
        while part := source.recv(65536):
            if not frozen.is_set():
                sink.sendall(part)
        if not frozen.is_set():
            sink.shutdown(socket.SHUT_WR)
