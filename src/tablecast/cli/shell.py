"""The interactive shell of `tablecast sql`.

It reads a whole statement at a time, from the first line to the semicolon, runs it and prints what it answers. What
begins with a backslash is a command of the shell itself. An error is told in a line and the shell goes on; Ctrl-C
drops what was typed, or stops the query that runs; Ctrl-D leaves, and rolls back what was not committed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime

from tablecast.cli.console import print_error, say
from tablecast.cli.options import Format
from tablecast.cli.prompt import Prompt
from tablecast.cli.render import render
from tablecast.cli.runner import Runner
from tablecast.cli.script import read_statements
from tablecast.client.statements import Kind, kind_of
from tablecast.errors import InvalidRequest, TablecastError

HELP = r"""\d [TABLE]      columns of a table, or all tables
\dt             tables
\topics         topics, with their messages and bytes
\groups         consumer groups, with their lag
\format [NAME]  how results are written: table, json, csv, ndjson
\timing         show how long each statement takes, or stop showing it
\watch [N]      run the last query again every N seconds (2), until Ctrl-C
\?              this list
\q              leave; so does Ctrl-D

A statement ends with a semicolon and may have many lines. Ctrl-C drops it, or stops a query that runs."""

WATCH_SECONDS = 2.0

_TABLES = "SELECT namespace, name, kind, access_level, primary_key, ttl_seconds FROM system.tables ORDER BY ALL"
_TOPICS = (
    "SELECT namespace, name, alias, partitions, sources, messages, bytes, retention_seconds "
    "FROM system.topics ORDER BY namespace, name"
)
_GROUPS = "SELECT * FROM system.topic_groups ORDER BY topic, group_id, partition_id"


class Shell:
    def __init__(self, runner: Runner, name: str, form: Format, prompt: Prompt) -> None:
        self._runner = runner
        self._name = name
        self._format = form
        self._timing = False
        self._last_query = ""
        self._prompt = prompt
        self._commands: dict[str, Callable[[str], None]] = {
            "d": self._describe,
            "dt": lambda rest: self._show(_TABLES),
            "topics": lambda rest: self._show(_TOPICS),
            "groups": lambda rest: self._show(_GROUPS),
            "format": self._set_format,
            "timing": self._toggle_timing,
            "watch": self._watch,
            "?": lambda rest: _print(HELP),
        }

    def run(self) -> None:
        say(r"\? for help, \q to leave")
        while (text := self._read()) is not None:
            try:
                self._answer(text)
            except TablecastError as error:
                print_error(error)
            except KeyboardInterrupt:
                say("interrupted")

    def _read(self) -> str | None:
        """What was typed, or None to leave."""
        try:
            marker = "*> " if self._runner.in_transaction else "> "
            text = self._prompt.read(self._name + marker).strip()
        except KeyboardInterrupt:
            return ""
        except EOFError:
            return None
        return None if text == r"\q" else text

    def _answer(self, text: str) -> None:
        if text.startswith("\\"):
            word, _, rest = text[1:].rstrip(";").partition(" ")
            self._command(word)(rest.strip())
            return
        for statement in read_statements([text]):
            if kind_of(statement.text) is Kind.READ:
                self._last_query = statement.text
            self._show(statement.text)

    def _command(self, word: str) -> Callable[[str], None]:
        found = self._commands.get(word)
        if found is None:
            raise InvalidRequest(rf"there is no command \{word}; \? lists them", command=word)
        return found

    def _show(self, sql: str) -> None:
        for result in self._runner.execute(sql):
            render(result, self._format)
        if self._timing:
            say(f"{self._runner.took_ms:,.3f} ms")

    def _describe(self, table: str) -> None:
        self._show(f"DESCRIBE {table}" if table else _TABLES)

    def _watch(self, seconds: str) -> None:
        if not self._last_query:
            raise InvalidRequest(r"\watch repeats the last query, and there was none: run a SELECT first")
        pause_seconds = _seconds(seconds) if seconds else WATCH_SECONDS
        while True:
            say(f"{datetime.now():%H:%M:%S}, every {pause_seconds:g} s")
            self._show(self._last_query)
            time.sleep(pause_seconds)

    def _set_format(self, name: str) -> None:
        if name and name not in list(Format):
            raise InvalidRequest(f"there is no format {name!r}: the formats are {', '.join(Format)}", format=name)
        self._format = Format(name) if name else self._format
        _print(f"format is {self._format}")

    def _toggle_timing(self, rest: str) -> None:
        self._timing = not self._timing
        _print(f"timing is {'on' if self._timing else 'off'}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise InvalidRequest(rf"\watch {text}: say how many seconds to wait, as \watch 5")
    return seconds


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
