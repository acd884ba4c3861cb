"""`tablecast sql`: one command, a script, or a shell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import typer

from tablecast.cli.app import Format
from tablecast.cli.complete import Names
from tablecast.cli.console import print_error, say
from tablecast.cli.opening import opened
from tablecast.cli.progress import by_bytes
from tablecast.cli.prompt import make_prompt
from tablecast.cli.render import render
from tablecast.cli.running import Runner
from tablecast.cli.script import read_statements
from tablecast.cli.shell import Shell
from tablecast.errors import TablecastError
from tablecast.model.schema import SYSTEM_ACTOR
from tablecast.sql.database import MEMORY, Database
from tablecast.sql.parameters import check_count
from tablecast.sql.parse import parse
from tablecast.sql.session import Session

STDIN = "-"
_DECODER = msgspec.json.Decoder(float_hook=Decimal)


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    command: str | None
    file: str | None
    format: Format
    user: str | None
    role: str
    namespace: str
    params: tuple[str, ...]
    create: bool


def run(request: Request) -> None:
    is_new = request.path != MEMORY and not Path(request.path).exists()
    with opened(request.path, create=request.create) as database:
        if is_new:
            say(f"made a new database at {request.path}")
        with Runner(database, _session(database, request)) as runner:
            _run(database, runner, request)


def _run(database: Database, runner: Runner, request: Request) -> None:
    if request.command is not None:
        run_command(runner, request.command, request.params, request.format)
    elif request.file not in (None, STDIN):
        run_file(runner, Path(str(request.file)), request.format)
    elif request.file == STDIN or not sys.stdin.isatty():
        run_script(runner, sys.stdin, request.format, "stdin")
    else:
        names = Names(lambda: database.engine.catalog, request.namespace)
        Shell(runner, Path(request.path).name, request.format, make_prompt(names)).run()


def _session(database: Database, request: Request) -> Session:
    database.engine.catalog.namespace(request.namespace)
    if request.user is None:
        return database.session(SYSTEM_ACTOR.user_id, SYSTEM_ACTOR.role, request.namespace)
    return database.session(request.user, request.role, request.namespace)


# --- one command ------------------------------------------------------------------------------------------------


def run_command(runner: Runner, text: str, params: Sequence[str], form: Format) -> None:
    """Parsed as a whole, so that a slip in the last statement does not leave the first ones done."""
    values = [parameter(value) for value in params]
    counts = [statement.parameters for statement in parse(text)]
    check_count(values, sum(counts))
    for statement, count in zip(read_statements([text]), counts, strict=True):
        render(runner.execute(statement.text, values[:count]), form)
        del values[:count]


def parameter(text: str) -> Any:
    """A value from the command line: JSON if it is JSON, so 7 is a number and "7" a text; else the text itself."""
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:
        return text


# --- a script ---------------------------------------------------------------------------------------------------


def run_file(runner: Runner, path: Path, form: Format) -> None:
    if sys.stdout.isatty():  # results on the same terminal show how far it is, and would break a bar
        run_script(runner, _lines_of(path, _ignore), form, str(path))
        return
    with by_bytes("running") as progress:
        run_script(runner, _lines_of(path, progress), form, str(path), quiet=True)


def _lines_of(path: Path, progress: Callable[[int, int], None]) -> Iterator[str]:
    done = 0
    try:
        with path.open(encoding="utf-8", newline="") as file:  # a text in the script may hold a carriage return
            size = path.stat().st_size
            for line in file:
                yield line
                done += len(line.encode())
                progress(done, size)
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}", param_hint="-f") from None


def _ignore(done: int, total: int) -> None:
    pass


def run_script(runner: Runner, lines: Iterable[str], form: Format, name: str, *, quiet: bool = False) -> None:
    """Statement by statement, up to the first error."""
    for statement in read_statements(lines):
        try:
            render(runner.execute(statement.text, quiet=quiet), form)
        except TablecastError as error:
            print_error(error, where=f"{name}, statement at line {statement.line}: ")
            raise typer.Exit(1) from None
