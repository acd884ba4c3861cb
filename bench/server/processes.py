"""Servers as child processes: started on a free port, asked until they answer, ended when done."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.measure import NotInstalled

START_SECONDS = 30.0
STOP_SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def program(name: str, install: str, *folders: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([*folders, str(Path(sys.executable).parent), os.defpath]))
    if found is None:
        raise NotInstalled(f"{name} is missing, install with {install}")
    return found


@contextmanager
def running(command: Sequence[str], port: int, log: Path, environment: dict[str, str] | None = None) -> Iterator[int]:
    """Yields the process's id."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
        try:
            _wait_for_port(port, process, log)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def processor_seconds(pid: int) -> float:
    """That a process has used since it began."""
    times = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{process.args!r} does not listen on port {port}:\n{log.read_text()[-2000:]}")
