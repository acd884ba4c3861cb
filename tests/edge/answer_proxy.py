"""A TCP proxy before a broker that can swallow an acknowledgement of the broker, cut the connection, and let none be made."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Self

PIECE_BYTES = 65_536
PUBACK = 4  # the kind of an MQTT packet


class AnswerProxy:
    """Once `swallow` is set, the next acknowledgement goes nowhere, and is the connection's last; the next one waits for `heal`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.swallow = threading.Event()
        self.swallowed = threading.Event()
        self._is_whole = threading.Event()
        self._is_whole.set()
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
        self.heal()
        for thread in self._threads:
            thread.join()

    def heal(self) -> None:
        self._is_whole.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(client,), name="proxied"))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        self._is_whole.wait()
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as broker:
            asking = threading.Thread(target=_pass_on, args=(client, broker), name="asking")
            asking.start()
            self._answer(broker, client)
            for end in (client, broker):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            asking.join()

    def _answer(self, broker: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := broker.recv(PIECE_BYTES):
                if self.swallow.is_set() and PUBACK in _kinds(piece):
                    self.swallow.clear()
                    self._is_whole.clear()
                    self.swallowed.set()
                    return
                client.sendall(piece)


def _kinds(piece: bytes) -> Iterator[int]:
    """Of the packets in it: a broker's are short, and come whole."""
    at = 0
    while at < len(piece):
        yield piece[at] >> 4
        size = shift = 0
        while at + 1 < len(piece):  # seven bits of the size a byte, the lowest first
            at += 1
            size |= (piece[at] & 0x7F) << shift
            shift += 7
            if piece[at] < 0x80:
                break
        at += size + 1


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
