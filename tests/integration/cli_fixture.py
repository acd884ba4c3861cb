"""The command line for tests: in a process with its own streams, in this process, and in a terminal.

A process's every byte of output counts, also what an interpreter might say while it ends. Interactive parts are driven
through a pseudo-terminal.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Self

from typer.testing import CliRunner, Result

import tablecast
from tablecast.cli.app import app

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (
  id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), note JSON, at TIMESTAMP, photo BYTES);
CREATE USER TABLE app.carts (item TEXT PRIMARY KEY);
CREATE TOPIC app.order_events ALIAS 'orders' PARTITIONS 2;
ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY;
INSERT INTO app.orders VALUES
  (1, 'ann', 12.50, '{"gift": [true, null]}', '2024-02-29T12:00:00Z', 'hi'::BLOB),
  (9007199254740993, 'Bob, "the" builder', NULL, NULL, NULL, NULL),
  (3, '', 0.01, '"text"', NULL, NULL);
UPDATE app.orders SET amount = 13 WHERE id = 1;
DELETE FROM app.orders WHERE id = 3;
"""


def shop(directory: Path) -> Path:
    """A database with three inserts, an update and a delete on a topic."""
    with tablecast.open(directory / "shop") as database:
        database.execute(SETUP)
    return directory / "shop"


def program(*args: object) -> list[str]:
    return [sys.executable, "-c", "from tablecast.cli import main; main()", *map(str, args)]


def run(*args: object, text: str = "") -> subprocess.CompletedProcess[str]:
    """The real program, with its own streams."""
    done = subprocess.run(program(*args), input=text.encode(), capture_output=True, timeout=120)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def invoke(*args: object, text: str = "") -> Result:
    """The same in this process, for paths where only the outcome matters."""
    return CliRunner().invoke(app, [*map(str, args)], input=text)


def csv_lines(path: Path, sql: str, *args: object) -> list[str]:
    return invoke("sql", path, "-c", sql, "--format", "csv", *args).stdout.splitlines()


def plain(text: str) -> str:
    """Without the boxes that usage errors are drawn in, nor line ends."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


def _takes_the_terminal() -> None:
    """So that Ctrl-C is a signal, also for tests that run in the background, where a shell has it ignored."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program in a terminal of its own. What was seen is text without colours and cursor movements."""

    PATIENCE_SECONDS = 60.0

    def __init__(self, command: list[str], **env: str) -> None:
        self._screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=_takes_the_terminal,
            env={**os.environ, "COLUMNS": "200", "LINES": "50", "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **env},
        )
        os.close(inside)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def enter(self, prompt: str, text: str) -> None:
        """Types a line when it is asked for one: a key like Ctrl-D means something else before."""
        self.expect(prompt)
        self.type(text + "\r")

    def expect(self, wanted: str) -> str:
        """Reads up to `wanted`."""
        until = time.monotonic() + self.PATIENCE_SECONDS
        while wanted not in self._seen:
            assert self._read(until), f"no {wanted!r} in {self._seen!r}"
        before, _, self._seen = self._seen.partition(wanted)
        return before

    def press_until(self, key: str, wanted: str) -> None:
        """As a person does: a signal that comes just before input() reads is noticed with the next one."""
        for _ in range(10):
            self.type(key)
            until = time.monotonic() + self.PATIENCE_SECONDS / 10
            while wanted not in self._seen and time.monotonic() < until:
                self._read(until)
            if wanted in self._seen:
                break
        self.expect(wanted)

    def end(self) -> tuple[int, str]:
        """Waits for its end: exit code, and what it said last."""
        until = time.monotonic() + self.PATIENCE_SECONDS
        while self._read(until):
            pass
        os.close(self._screen)
        return self._process.wait(self.PATIENCE_SECONDS), self._seen

    def _read(self, until: float) -> bool:
        ready, _, _ = select.select([self._screen], [], [], max(0, until - time.monotonic()))
        try:
            more = os.read(self._screen, 65_536) if ready else b""
        except OSError:  # how Linux says that the other side is closed
            more = b""
        self._seen += _CONTROL.sub("", more.decode(errors="replace"))
        return bool(more)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Terminals:
    """As many as a test opens; all are gone at its end."""

    def __init__(self) -> None:
        self._opened: list[Terminal] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for terminal in self._opened:
            terminal.kill()

    def open(self, *args: object, **env: str) -> Terminal:
        return self.run(program(*args), **env)

    def run(self, command: list[str], **env: str) -> Terminal:
        self._opened.append(Terminal(command, **env))
        return self._opened[-1]
