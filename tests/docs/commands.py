"""Commands of a page, as somebody types them: in one directory, one after the other, with a server if the page starts one.

Only three things are other than written: the port, since 8080 may be in use; `/backups`, `/data` and `/archive`, which are
directories below the page's own; and the terminal, which there is none of. What is printed is shown with what was written.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pages import Block, blocks

SHELLS = ("console", "sh")
SERVED = "server"  # the README's six lines: test_readme_server.py runs them
ADDRESS = "http://127.0.0.1:8080"
STARTS_A_SERVER = re.compile(r"(?:[A-Z_]+=(?:'[^']*'|\"[^\"]*\"|\S*) )*tablecast serve\b(?!.*--print-config)")
EXPORTS = re.compile(r"export ([A-Z_]+)=(.*)")
PLACES = re.compile(r"(?<![\w./])/(backups|data|archive)(?=/|\b)")
SECONDS = 180  # for one command on a machine under load


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    shown: str | None  # None: whatever it prints


def commands(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language in SHELLS]


def typed(page: Path) -> list[Step]:
    """All commands of a page that are run, in their order."""
    return [step for block in commands(page) if _is_run(block) for step in steps(block)]


def _is_run(block: Block) -> bool:
    return not block.mark.startswith("not run") and block.mark != SERVED


def steps(block: Block) -> list[Step]:
    """`console`: each `$ ` line with what is shown below it. `sh`: each line, a backslash at its end joins it with the next."""
    if block.language == "console":
        parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
        assert not parts[0].strip(), f"line {block.line}: a console block begins with a command"
        return [Step(*_split(part)) for part in parts[1:]]
    lines = block.text.replace("\\\n", " ").splitlines()
    return [Step(line, None) for line in lines if line.strip() and not line.startswith("#")]


def _split(part: str) -> tuple[str, str]:
    command, shown = part.replace("\\\n", " ").split("\n", 1)
    return command, shown


class Terminal:
    """A directory, an environment, and at most one server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._env = {
            "PATH": programs,
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
            **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
        }
        self._server: subprocess.Popen[str] | None = None
        self._url = ADDRESS
        for place in ("backups", "data", "archive"):
            (directory / place).mkdir(exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, step: Step) -> None:
        """Runs it, and compares what it says with what is shown."""
        if export := EXPORTS.fullmatch(step.command):
            [self._env[export[1]]] = shlex.split(export[2])
            return
        said = self._serve(step.command) if STARTS_A_SERVER.match(step.command) else self._finished(step)
        if step.shown is not None:
            assert_shown(step, said)

    def _finished(self, step: Step) -> str:
        done = subprocess.run(
            ["bash", "-c", self._here(step.command)], cwd=self._directory, env=self._env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        expected = 1 if step.shown is not None and step.shown.startswith("error [") else 0
        assert done.returncode == expected, f"$ {step.command}\nended with {done.returncode}:\n{done.stdout}"
        return self._written(done.stdout)

    def _serve(self, command: str) -> str:
        """Up to the line that tells the address."""
        self.stop()
        self._server = subprocess.Popen(
            ["bash", "-c", f"{self._here(command)} --port 0"], cwd=self._directory, env=self._env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        said = "".join(self._until_listening(self._server))
        self._url = said.split()[-1]
        return self._written(said)

    def _until_listening(self, server: subprocess.Popen[str]) -> Iterator[str]:
        assert server.stdout is not None
        for line in server.stdout:
            yield line
            if "listening on" in line:
                return
        raise AssertionError("the server ended before it listened")

    def stop(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            assert self._server.wait(SECONDS) == 0
            assert self._server.stdout is not None
            self._server.stdout.close()
            self._server = None

    def _here(self, text: str) -> str:
        text = text.replace(ADDRESS, self._url).replace("localhost:8080", self._url.removeprefix("http://"))
        return PLACES.sub(lambda place: f"{self._directory}{place[0]}", text)

    def _written(self, text: str) -> str:
        return text.replace(self._url, ADDRESS).replace(str(self._directory), "")


def assert_shown(step: Step, said: str) -> None:
    """Line by line; `…` stands for any text within a line, and spaces at the end of a line do not count."""
    assert step.shown is not None
    shown, lines = ([line.rstrip() for line in text.rstrip().splitlines()] for text in (step.shown, said))
    patterns = [".*".join(map(re.escape, line.split("…"))) for line in shown]
    same = len(patterns) == len(lines) and all(map(re.fullmatch, patterns, lines))
    assert same, f"$ {step.command}\nshown:\n{step.shown}\nsaid:\n{said}"
