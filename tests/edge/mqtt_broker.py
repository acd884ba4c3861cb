"""A real broker, mosquitto, for the tests: started on a free port, stopped, killed and started again."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
READY = b"running"
STOP_SECONDS = 60


def program(name: str) -> str:
    found = shutil.which(name, path=SEARCHED)
    assert found, f"{name} is missing: run tools/ensure-mosquitto"
    return found


class Broker:
    """`options` are lines of mosquitto's configuration. Sessions survive `stop`, not `kill`."""

    def __init__(self, folder: Path, *options: str, anonymous: bool = True) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._file = folder / "mosquitto.conf"
        lines = [
            f"listener {self.port} 127.0.0.1",
            f"allow_anonymous {str(anonymous).lower()}",
            f"user {_account()}",
            "persistence true",
            f"persistence_location {folder}/",
            "max_queued_messages 0",
            "log_dest stderr",
            *options,
        ]
        self._file.write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [program("mosquitto"), "-v", "-c", str(self._file)]
        with (self._folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=log)
        assert self._process.stderr is not None
        seen = b""
        for line in self._process.stderr:
            seen += line
            if READY in line:
                break
        else:
            raise AssertionError(f"mosquitto did not start: {seen.decode()}")
        self._drain = subprocess.Popen(["cat"], stdin=self._process.stderr, stdout=subprocess.DEVNULL)
        self._process.stderr.close()

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._ended(self._process, how)
            self._drain.wait(STOP_SECONDS)
            self._process = None

    def _ended(self, process: subprocess.Popen[bytes], how: signal.Signals) -> None:
        """Told again and again: mosquitto forgets a signal that comes between its saying that it runs and its first turn."""
        for _ in range(STOP_SECONDS):
            process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
                return
        raise AssertionError(f"mosquitto did not stop within {STOP_SECONDS} seconds")


@contextmanager
def running(folder: Path, *options: str, anonymous: bool = True) -> Iterator[Broker]:
    broker = Broker(folder, *options, anonymous=anonymous)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def free_port() -> int:
    """Below those that the system gives to others: a broker that is away must find its port free when it comes back."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", Random().randrange(20_000, 32_000)))
            port: int = probe.getsockname()[1]
            return port


def _account() -> str:
    """mosquitto as root takes another account unless it is told not to; it must read and write our folder."""
    return pwd.getpwuid(os.getuid()).pw_name
