"""The interactive shell of `tablecast sql`.

It reads a whole statement at a time, from the first line to the semicolon, runs it and prints what it answers. What
begins with a backslash is a command of the shell itself. An error is told in a line and the shell goes on; Ctrl-C
drops what was typed, or stops the query that runs; Ctrl-D leaves, and rolls back what was not committed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tablecast.cli.app import Format
from tablecast.cli.console import print_error, say
from tablecast.cli.prompt import Prompt
from tablecast.cli.render import render
from tablecast.cli.running import Runner
from tablecast.cli.script import read_statements
from tablecast.errors import InvalidRequest, TablecastError

HELP = r"""\d [TABLE]      columns of a table, or all tables
\dt             tables
\topics         topics, with their messages and bytes
\groups         consumer groups, with their lag
\format [NAME]  how results are written: table, json, csv, ndjson
\timing         show how long each statement takes, or stop showing it
\?              this list
\q              leave; so does Ctrl-D

A statement ends with a semicolon and may have many lines. Ctrl-C drops it, or stops a query that runs."""

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
        self._prompt = prompt
        self._commands: dict[str, Callable[[str], None]] = {
            "d": self._describe,
            "dt": lambda rest: self._show(_TABLES),
            "topics": lambda rest: self._show(_TOPICS),
            "groups": lambda rest: self._show(_GROUPS),
            "format": self._set_format,
            "timing": self._toggle_timing,
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
            marker = "*> " if self._runner.session.in_transaction else "> "
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
            self._show(statement.text)

    def _command(self, word: str) -> Callable[[str], None]:
        found = self._commands.get(word)
        if found is None:
            raise InvalidRequest(rf"there is no command \{word}; \? lists them", command=word)
        return found

    def _show(self, sql: str) -> None:
        render(self._runner.execute(sql), self._format)
        if self._timing:
            say(f"{self._runner.took_ms:,.3f} ms")

    def _describe(self, table: str) -> None:
        self._show(f"DESCRIBE {table}" if table else _TABLES)

    def _set_format(self, name: str) -> None:
        if name and name not in list(Format):
            raise InvalidRequest(f"there is no format {name!r}: the formats are {', '.join(Format)}", format=name)
        self._format = Format(name) if name else self._format
        _print(f"format is {self._format}")

    def _toggle_timing(self, rest: str) -> None:
        self._timing = not self._timing
        _print(f"timing is {'on' if self._timing else 'off'}")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
