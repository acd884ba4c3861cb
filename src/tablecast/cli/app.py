"""What `tablecast` understands: every command with its options and help text, and nothing else.

This module imports no database, only typer; each command imports the module that does its work.

Exit codes: 0 done, 1 an error (or `verify` found a problem), 2 the command was used wrongly, 130 Ctrl-C.
"""

from __future__ import annotations

from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tablecast.errors import TablecastError


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    NDJSON = "ndjson"


class RoleName(StrEnum):
    USER = "user"
    SERVICE = "service"
    DBA = "dba"
    SYSTEM = "system"


class MessageFormat(StrEnum):
    TEXT = "text"
    NDJSON = "ndjson"


class _Commands(TyperGroup):
    """Ends a command that failed with one line instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TablecastError as error:
            from tablecast.cli.console import print_error

            print_error(error)
            raise typer.Exit(1) from None


app = typer.Typer(
    name="tablecast",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A change-event database: every table write, on every channel, exactly once.",
    epilog='Example: tablecast sql ./shop -c "SELECT * FROM system.tables"',
)


# --- arguments that several commands take -----------------------------------------------------------------------


def _local_path(target: str) -> str:
    """Where a server's address will be accepted, once there is a server to speak to."""
    if "://" in target:
        raise typer.BadParameter(f"{target} is a URL; name the directory of a local database instead")
    return target


Database = Annotated[
    str, typer.Argument(metavar="PATH", callback=_local_path, help="The directory of the database.", show_default=False)
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")]
Interval = Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks with --watch.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tablecast {version('tablecast')}")
        raise typer.Exit


@app.callback()
def tablecast(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


# --- SQL --------------------------------------------------------------------------------------------------------


@app.command(epilog="""Example: tablecast sql ./shop -c "SELECT * FROM app.orders WHERE id = ?" --param 7""")
def sql(
    path: Database,
    command: Annotated[str | None, typer.Option("-c", "--command", metavar="SQL", help="Run this and leave.")] = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", metavar="FILE", help="Run the statements of a file; - is stdin.")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="How results are written.")] = Format.TABLE,
    user: Annotated[str | None, typer.Option("--user", help="Whose session it is (default: system).")] = None,
    role: Annotated[RoleName, typer.Option("--role", help="The role of --user.")] = RoleName.USER,
    namespace: Annotated[str, typer.Option("--namespace", help="Where unqualified names are looked up.")] = "default",
    param: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="VALUE", help="A value for the next ? of -c: as JSON, else as text."),
    ] = None,
    create: Annotated[bool, typer.Option(help="Make the database if there is none.")] = True,
) -> None:
    """Run SQL, or open a shell.

    Without -c and -f, on a terminal, it is a shell: \\? lists its commands. Statements piped in are run like a file's.
    """
    if command is not None and file is not None:
        raise typer.BadParameter("give -c or -f, not both")
    if file not in (None, "-") and not Path(str(file)).exists():  # before a database is made for it
        raise typer.BadParameter(f"{file} cannot be read: there is no such file")
    if param and command is None:
        raise typer.BadParameter("--param goes with -c: a script has no place for parameters")
    if user is None and role is not RoleName.USER:
        raise typer.BadParameter("--role goes with --user: say whose role it is")
    from tablecast.cli.sql import Request, run

    run(Request(path, command, file, output, user, role, namespace, tuple(param or ()), create))


# --- looking at topics and groups -------------------------------------------------------------------------------


@app.command(epilog="Example: tablecast topics ./shop")
def topics(path: Database, watch: Watch = False, interval: Interval = 2.0) -> None:
    """List the topics: partitions, sources, messages, size, retention."""
    from tablecast.cli.topics import show_topics

    show_topics(path, interval if watch else None)


@app.command(epilog="Example: tablecast groups ./shop --watch")
def groups(path: Database, watch: Watch = False, interval: Interval = 2.0) -> None:
    """List the consumer groups: what each has acknowledged, and its lag in messages and seconds."""
    from tablecast.cli.topics import show_groups

    show_groups(path, interval if watch else None)


@app.command(epilog="Example: tablecast tail ./shop app.order_events --from earliest --filter op=insert,delete")
def tail(
    path: Database,
    topic: Annotated[str, typer.Argument(help="The topic: namespace.name, or its alias.", show_default=False)],
    group: Annotated[
        str | None, typer.Option("--group", help="Read as this group: what is shown is acknowledged.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="earliest|latest|N", help="Where to begin (default: the last 10 messages)."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Leave after that many messages.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more at the end of the log.")] = True,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="FIELD=A,B", help="Only messages whose op, table or user is one of these."),
    ] = None,
    output: Annotated[MessageFormat, typer.Option("--format", help="How messages are written.")] = MessageFormat.TEXT,
) -> None:
    """Show a topic's messages, and those that follow.

    A local database belongs to one process, so what follows is only what this process itself writes (expired claims
    that become dead letters, say): to watch another process, ask its server.
    """
    from tablecast.cli.tail import Tail, parse_filters, parse_start

    Tail(topic, group, parse_start(start), limit, follow, parse_filters(filters or []), output).run(path)


# --- keeping a database safe ------------------------------------------------------------------------------------


@app.command(epilog="Example: tablecast verify ./shop")
def verify(path: Database) -> None:
    """Prove a database sound, or say what is not.

    Every row and message is read: all decode, offsets have no gap, every topic tells what its tables hold.
    """
    from tablecast.cli.verify import run

    raise typer.Exit(run(path))


@app.command(epilog="Example: tablecast backup ./shop /backups/shop-monday")
def backup(
    path: Database,
    target: Annotated[Path, typer.Argument(help="Where the copy goes; must not exist yet.", show_default=False)],
) -> None:
    """Copy a database, whole or not at all. The copy is itself a database."""
    from tablecast.cli.backup import back_up

    back_up(path, target)


@app.command(epilog="Example: tablecast restore /backups/shop-monday ./shop")
def restore(
    backup_path: Annotated[
        str, typer.Argument(metavar="BACKUP", callback=_local_path, help="A backup.", show_default=False)
    ],
    path: Annotated[Path, typer.Argument(help="Where the database goes; must not exist yet.", show_default=False)],
    check: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Verify the copy before it takes its place.")
    ] = True,
) -> None:
    """Make a database of a backup, whole or not at all."""
    from tablecast.cli.backup import restore_from

    restore_from(Path(backup_path), path, check)
