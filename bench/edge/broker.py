"""mosquitto, with room for every event in flight and with nothing dropped."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.edge.roles import WINDOW
from bench.server.processes import free_port, program, running

SBIN = ("/usr/sbin", "/usr/local/sbin")  # the broker is a daemon: Debian puts it where a user's PATH does not look


def mosquitto() -> str:
    return program("mosquitto", "apt-get install mosquitto", *SBIN)


@contextmanager
def broker(path: Path) -> Iterator[int]:
    port, file = free_port(), path / "mosquitto.conf"
    account = pwd.getpwuid(os.getuid()).pw_name
    file.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser {account}\nmax_queued_messages 0\n"
        f"max_inflight_messages {WINDOW}\n"
    )
    command = [mosquitto(), "-c", str(file)]
    with running(command, port, path / "mosquitto.log"):
        yield port
