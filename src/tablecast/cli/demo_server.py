"""The server of the demo: `tablecast serve` as a process of its own."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tablecast.cli.serve import PASSWORD
from tablecast.client.bulk_server import Server
from tablecast.errors import Unreachable

START_SECONDS = 60.0  # a server that has said nothing by then does not start
LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Served:
    address: Server
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def served(path: Path) -> Iterator[Served]:
    """Over `path`/db, with a password made up for it, until the block ends."""
    password, said = secrets.token_urlsafe(16), path / "server.log"
    command = [sys.executable, "-m", "tablecast", "serve", "--data", str(path / "db"), "--port", "0"]
    environment = {**os.environ, PASSWORD: password}
    with said.open("wb") as log:
        # In a group of its own: Ctrl-C is for the demo, which ends the server in its turn.
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, process_group=0)
        try:
            yield Served(Server(_address(process, said), user="system", password=password), process, said)
        finally:
            process.terminate()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + START_SECONDS
    while (found := re.search(r"listening on (\S+)\s", log.read_text())) is None:
        if process.poll() is not None or time.monotonic() > until:
            raise Unreachable(f"the server did not start: see {log}")
        time.sleep(LOOK_SECONDS)
    return found[1]
