"""A TCP proxy that cuts one connection after so many bytes of answers, and then goes to wherever it is told."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

PIECE_BYTES = 65536


class CuttingProxy:
    """`then` is called once, when a connection was cut: it returns the port to which everything goes from there on."""

    def __init__(self, port: int, *, cut_after: int, then: Callable[[], int]) -> None:
        self._port, self._then = port, then
        self._left: int | None = cut_after
        self._turn = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, name="proxy")]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,), name="proxied")
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as server:
            asking = threading.Thread(target=self._pass_on, args=(client, server), name="asking")
            asking.start()
            self._answer(server, client)
            for end in (client, server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            asking.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        while piece := server.recv(PIECE_BYTES):
            with self._turn:
                if self._left is not None:
                    self._left -= len(piece)
                    if self._left <= 0:
                        self._left = None
                        self._port = self._then()
                        return
            client.sendall(piece)
