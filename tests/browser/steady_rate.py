"""Many changes a second, for pages that are to bear them."""

from __future__ import annotations

import threading
import time
from typing import Self

from server_fixture import ServerThread

MANY_PER_SECOND = 5_000


class Writing:
    """Batches of updates of `app.ticks` until the end of the block, each due at its time: what was late is caught up."""

    def __init__(self, server: ServerThread, rows: int, per_second: int = MANY_PER_SECOND) -> None:
        self.changes = 0  # that are committed
        self._server = server
        self._rows = rows
        self._pause_seconds = rows / per_second
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, name="writing")

    def _write(self) -> None:
        began = time.monotonic()
        while not self._over.wait(max(0.0, began + self.changes / self._rows * self._pause_seconds - time.monotonic())):
            body = [{"id": key, "value": self.changes} for key in range(self._rows)]
            assert self._server.post("/tables/app.ticks/rows?mode=upsert", body).status == 200
            self.changes += self._rows

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
