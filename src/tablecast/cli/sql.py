"""`tablecast sql`: one command, a script, or a shell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from tablecast.cli.complete import Names
from tablecast.cli.console import print_error, say
from tablecast.cli.opening import connected, local
from tablecast.cli.options import Format
from tablecast.cli.progress import by_bytes
from tablecast.cli.prompt import make_prompt
from tablecast.cli.render import render
from tablecast.cli.runner import Runner
from tablecast.cli.script import read_statements
from tablecast.cli.shell import Shell
from tablecast.cli.target import Target
from tablecast.errors import TablecastError, TransactionState, UnknownNamespace
from tablecast.model.names import DEFAULT_NAMESPACE, read_part
from tablecast.model.schema import SYSTEM_ACTOR

if TYPE_CHECKING:
    from tablecast.client.sync import Client
    from tablecast.sql.database import Database
    from tablecast.sql.session import Session

STDIN = "-"
MEMORY = ":memory:"
_DECODER = msgspec.json.Decoder(float_hook=Decimal)


@dataclass(frozen=True, slots=True)
class Request:
    """`role` and `create` are for local databases."""

    target: Target
    command: str | None
    file: str | None
    format: Format
    role: str
    namespace: str
    params: tuple[str, ...]
    create: bool


def run(request: Request) -> None:
    request.target.check(takes_user=True)
    with _remote(request) if request.target.is_server else _local(request) as runner:
        _run(runner, request)


@contextmanager
def _remote(request: Request) -> Iterator[Runner]:
    with connected(request.target, request.namespace) as client:
        from tablecast.cli.runner_remote import RemoteRunner  # after `connected`: see `opening.trust`

        _check_namespace(client, read_part(request.namespace))
        with RemoteRunner(client) as runner:
            yield runner


def _check_namespace(client: Client, namespace: str) -> None:
    if namespace != DEFAULT_NAMESPACE and namespace not in [name for name, *_ in client.query("SHOW NAMESPACES")]:
        raise UnknownNamespace(f"there is no namespace {namespace!r}", namespace=namespace)


@contextmanager
def _local(request: Request) -> Iterator[Runner]:
    from tablecast.cli.runner_local import LocalRunner

    path = request.target.place
    is_new = path != MEMORY and not Path(path).exists()
    with local(path, create=request.create) as database:
        if is_new:
            say(f"made a new database at {path}")
        with LocalRunner(database, _session(database, request)) as runner:
            yield runner


def _session(database: Database, request: Request) -> Session:
    database.engine.catalog.namespace(read_part(request.namespace))  # or says that there is none
    if request.target.user is None:
        return database.session(SYSTEM_ACTOR.user_id, SYSTEM_ACTOR.role, request.namespace)
    return database.session(request.target.user, request.role, request.namespace)


def _run(runner: Runner, request: Request) -> None:
    if request.command is not None:
        run_command(runner, request.command, request.params, request.format)
    elif request.file not in (None, STDIN):
        run_file(runner, Path(str(request.file)), request.format)
    elif request.file == STDIN or not sys.stdin.isatty():
        run_script(runner, sys.stdin, request.format, "stdin")
    else:
        names = Names(runner.peek, read_part(request.namespace))
        Shell(runner, request.target.name, request.format, make_prompt(names)).run()


# --- one command ------------------------------------------------------------------------------------------------


def run_command(runner: Runner, text: str, params: Sequence[str], form: Format) -> None:
    for result in runner.execute_text(text, [parameter(value) for value in params]):
        render(result, form)


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
    """Statement by statement, up to the first error. A transaction that the script does not end is one."""
    for statement in read_statements(lines):
        try:
            for result in runner.execute(statement.text, quiet=quiet):
                render(result, form, quiet=quiet)
        except TablecastError as error:
            print_error(error, where=f"{name}, statement at line {statement.line}: ")
            raise typer.Exit(1) from None
    if runner.in_transaction:
        remedy = "end it with COMMIT or ROLLBACK"
        print_error(
            TransactionState(f"the script ends inside a transaction, which is not committed: {remedy}"), f"{name}: "
        )
        raise typer.Exit(1)
