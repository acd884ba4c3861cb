"""A server that also tells when each commit became durable, on the clock that all processes share.

python -m bench.live.stamped DIRECTORY     "port PORT", and for every commit "number time", on standard output
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from bench.server.ours import PASSWORD
from tablecast.engine.ahead import Ahead
from tablecast.engine.commit import Commit
from tablecast.engine.engine import Engine
from tablecast.storage.base import Snapshot


class Stamped:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._lines = process.stdout
        self._stamps: dict[int, float] = {}
        self._came = threading.Condition()
        self.port = self._read_port()
        threading.Thread(target=self._read, daemon=True).start()

    def _read_port(self) -> int:
        """After the commits of the first start, which nobody asks for."""
        for line in self._lines:
            if line.startswith("port "):
                return int(line.split()[1])
        raise RuntimeError("the server ended")

    def _read(self) -> None:
        for line in self._lines:
            seq, at = line.split()
            with self._came:
                self._stamps[int(seq)] = float(at)
                self._came.notify_all()

    def committed(self, seq: int) -> float:
        with self._came:
            assert self._came.wait_for(lambda: seq in self._stamps, 30), f"commit {seq} was not told"
            return self._stamps[seq]


@contextmanager
def stamped_server(path: Path) -> Iterator[Stamped]:
    command = [sys.executable, "-m", "bench.live.stamped", str(path / "stamped")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield Stamped(process)
    finally:
        process.kill()
        process.wait()


def _main(directory: str) -> None:
    from bench.server.processes import free_port
    from tablecast.server.serve import serve
    from tablecast.server.settings import Settings

    port = free_port()
    publish = Engine._publish

    def stamping(self: Engine, commit: Commit, snapshot: Snapshot, ahead: Ahead) -> None:
        """Called right after the fsync, before anybody is told."""
        sys.stdout.write(f"{commit.seq} {time.monotonic()}\n")
        publish(self, commit, snapshot, ahead)
        sys.stdout.flush()

    with mock.patch.object(Engine, "_publish", stamping):
        settings = Settings(data=directory, port=port, log_level="warning")
        serve(settings, password=PASSWORD, say=lambda text: _say_port(text, port))


def _say_port(text: str, port: int) -> None:
    if "listening" in text:
        sys.stdout.write(f"port {port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main(sys.argv[1])
