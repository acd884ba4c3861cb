"""A TCP proxy before a broker whose link can be cut: connections break, and no new one lasts until it is healed."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

PIECE_BYTES = 65_536


class CutProxy:
    def __init__(self, port: int) -> None:
        self._port = port
        self._is_cut = False
        self._ends: set[socket.socket] = set()  # of connections that stand
        self._turn = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, name="proxy")]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        with self._turn:
            self._is_cut = True
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        with self._turn:
            self._is_cut = False

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(client,), name="proxied"))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as broker:
            with self._turn:
                if self._is_cut:
                    return
                self._ends |= {client, broker}
            asking = threading.Thread(target=_pass_on, args=(client, broker), name="asking")
            asking.start()
            _pass_on(broker, client)
            asking.join()
            with self._turn:
                self._ends -= {client, broker}


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Until one of them ends, and then neither goes on."""
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
