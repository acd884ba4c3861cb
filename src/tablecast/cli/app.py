"""What `tablecast` understands: every command with its options and help text, and nothing else.

This module imports no database, only typer; each command imports the module that does its work.

Exit codes: 0 done, 1 an error (or `verify` found a problem), 2 the command was used wrongly, 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tablecast.cli.app_copy import copy_app
from tablecast.cli.app_pipelines import pipelines_app
from tablecast.cli.app_user import user_app
from tablecast.cli.options import Format, Interval, MessageFormat, RoleName, Watch, on_target
from tablecast.cli.target import Target, require_local
from tablecast.errors import TablecastError


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
app.add_typer(user_app)
app.add_typer(pipelines_app)
app.add_typer(copy_app)

LocalPath = Annotated[str, typer.Argument(metavar="PATH", help="The directory of the database.", show_default=False)]


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
@on_target
def sql(
    target: Target,
    command: Annotated[str | None, typer.Option("-c", "--command", metavar="SQL", help="Run this and leave.")] = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", metavar="FILE", help="Run the statements of a file; - is stdin.")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="How results are written.")] = Format.TABLE,
    role: Annotated[
        RoleName | None, typer.Option("--role", help="The role of --user, in a local database (default: user).")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", help="Where unqualified names are looked up.")] = "default",
    param: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="VALUE", help="A value for the next ? of -c: as JSON, else as text."),
    ] = None,
    create: Annotated[bool, typer.Option(help="Make the database if there is none.")] = True,
) -> None:
    """Run SQL, or open a shell.

    Without -c and -f, on a terminal, it is a shell: \\? lists its commands. Statements piped in are run like a file's.
    In a local database nobody signs in: --user says whose session it is.
    """
    if command is not None and file is not None:
        raise typer.BadParameter("give -c or -f, not both")
    if file not in (None, "-") and not Path(str(file)).exists():  # before a database is made for it
        raise typer.BadParameter(f"{file} cannot be read: there is no such file")
    if param and command is None:
        raise typer.BadParameter("--param goes with -c: a script has no place for parameters")
    if role is not None and target.is_server:
        raise typer.BadParameter("--role goes with a local database: a server knows the roles of its users")
    if role is not None and target.user is None:
        raise typer.BadParameter("--role goes with --user: say whose role it is")
    from tablecast.cli.sql import Request, run

    run(Request(target, command, file, output, role or RoleName.USER, namespace, tuple(param or ()), create))


# --- looking at topics and groups -------------------------------------------------------------------------------


@app.command(epilog="Example: tablecast topics ./shop")
@on_target
def topics(target: Target, watch: Watch = False, interval: Interval = 2.0) -> None:
    """List the topics: partitions, sources, messages, size, retention."""
    from tablecast.cli.topics import show_topics

    show_topics(target, interval if watch else None)


@app.command(epilog="Example: tablecast groups http://127.0.0.1:8080 --watch")
@on_target
def groups(target: Target, watch: Watch = False, interval: Interval = 2.0) -> None:
    """List the consumer groups: what each has acknowledged, and its lag in messages and seconds."""
    from tablecast.cli.topics import show_groups

    show_groups(target, interval if watch else None)


@app.command(epilog="Example: tablecast tail http://127.0.0.1:8080 app.order_events --filter op=insert,delete")
@on_target
def tail(
    target: Target,
    topic: Annotated[str, typer.Argument(help="The topic: namespace.name, or its alias.", show_default=False)],
    group: Annotated[
        str | None, typer.Option("--group", help="Read as this group: what is shown is acknowledged.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="earliest|latest|N|TIME", help="Where to begin (default: the last 10 messages)."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Leave after that many messages.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more at the end of the log.")] = True,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="FIELD=A,B",
            help="Only messages whose op, table, user or payload.FIELD is one of these.",
        ),
    ] = None,
    output: Annotated[MessageFormat, typer.Option("--format", help="How messages are written.")] = MessageFormat.TEXT,
) -> None:
    """Show a topic's messages, and those that follow.

    A local database belongs to one process, so what follows is only what this process itself writes (expired claims
    that become dead letters, say): to watch what others write, ask a server.
    """
    from tablecast.cli.tail import Tail, follow_topic
    from tablecast.cli.tail_options import parse_filters, parse_start

    follow_topic(target, Tail(topic, group, parse_start(start), limit, follow, parse_filters(filters or []), output))


# --- serving ----------------------------------------------------------------------------------------------------


@app.command(epilog="Example: tablecast serve --data ./shop --port 8080")
def serve(
    data: Annotated[
        str | None, typer.Option("--data", metavar="PATH", help="The directory of the database; made if there is none.")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="The address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[str | None, typer.Option("--port", help="The port (default: 8080); 0 takes any.")] = None,
    tls_certificate: Annotated[
        str | None, typer.Option("--tls-certificate", metavar="FILE", help="The certificate, PEM; turns TLS on.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")] = None,
    insecure_network: Annotated[
        bool | None, typer.Option("--insecure-network", help="Listen beyond this machine without TLS.")
    ] = None,
    durability: Annotated[
        str | None, typer.Option("--durability", metavar="fsync|interval(ms)|none", help="What a crash may lose.")
    ] = None,
    mqtt: Annotated[
        str | None,
        typer.Option("--mqtt", metavar="URL", help="The MQTT broker to replicate through, as mqtt://host:1883."),
    ] = None,
    node_id: Annotated[
        str | None, typer.Option("--node-id", metavar="NAME", help="The name of this node among its peers.")
    ] = None,
    mqtt_prefix: Annotated[
        str | None,
        typer.Option("--mqtt-prefix", metavar="TOPIC", help="The first levels of its topics (default: tablecast)."),
    ] = None,
    log_format: Annotated[str | None, typer.Option("--log-format", metavar="text|json", help="Of log lines.")] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", metavar="debug|info|warning|error", help="The least that is logged.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, as often as needed.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings; flags win over it.")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show every setting, its value and its origin, as TOML, and leave.")
    ] = False,
) -> None:
    """Serve a database over HTTP.

    The first start makes the account system, with the password in TABLECAST_PASSWORD or one that it prints. SIGTERM or
    Ctrl-C ends it when running requests are answered; a second one at once.
    """
    from tablecast.cli.serve import configure, run

    flags = {
        "data": data, "host": host, "port": port, "tls_certificate": tls_certificate, "tls_key": tls_key,
        "insecure_network": insecure_network, "durability": durability, "mqtt": mqtt, "node_id": node_id,
        "mqtt_prefix": mqtt_prefix, "log_format": log_format, "log_level": log_level,
    }  # fmt: skip
    configuration = configure(config, flags, settings or [])
    if print_config:
        typer.echo(configuration.as_toml(), nl=False)
    else:
        run(configuration)


@app.command(epilog="Example: tablecast demo --data ./demo --keep")
def demo(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="PATH", help="Where everything is kept (default: a new temporary directory)."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="For how long orders are written.")] = 10.0,
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--no-keep", help="Leave the server up at the end, until Ctrl-C (default: if on a terminal)."
        ),
    ] = None,
) -> None:
    """See the main job, end to end.

    A server, 24 publishers over HTTP, a live query and a consumer group; a pipeline, an archive and an audit on Spark if
    that and Java are there. Every reader's count is compared with what was written.
    """
    from tablecast.cli.demo import Request, run

    raise typer.Exit(run(Request(data, seconds, sys.stdin.isatty() if keep is None else keep)))


@app.command(epilog="Example: tablecast bench --seconds 5 --threads 8")
def bench(
    path: Annotated[
        str | None,
        typer.Option("--path", metavar="PATH", help="A database on the disk to measure (default: a temporary one)."),
    ] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="A server to measure instead.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.05, help="For each of the three measurements.")] = 3.0,
    threads: Annotated[int, typer.Option("--threads", min=1, max=256, help="How many write single rows.")] = 24,
    durability: Annotated[
        str, typer.Option("--durability", metavar="fsync|interval(ms)|none", help="Of the temporary database.")
    ] = "fsync",
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Who signs in at the server.")] = None,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", metavar="FILE", help="A file with the password.")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="How the figures are written.")] = Format.TABLE,
) -> None:
    """Measure how fast a database writes and is read here.

    Single durable rows from many threads, with one route; batches; the topic read from its beginning; and the disk's
    fsync. It works in a namespace of its own, which is gone at the end; at a server that takes the role dba.
    """
    if path is not None and url is not None:
        raise typer.BadParameter("give --path or --url, not both")
    if path is not None and "://" in path:
        raise typer.BadParameter("a server's address goes with --url")
    if url is None and (user is not None or password_file is not None):
        raise typer.BadParameter("--user and --password-file go with --url")
    if durability != "fsync" and (path is not None or url is not None):
        raise typer.BadParameter("--durability goes with the temporary database")
    from tablecast.cli.bench import Request, run

    place = path if url is None else url
    target = None if place is None else Target(place, user, password_file)
    run(Request(target, seconds, threads, durability, output))


# --- keeping a database safe ------------------------------------------------------------------------------------


@app.command(epilog="Example: tablecast verify ./shop")
@on_target
def verify(target: Target) -> None:
    """Prove a database sound, or say what is not.

    Every row and message is read: all decode, offsets have no gap, every topic tells what its tables hold. A server reads
    its own, while it serves; this takes dba.
    """
    from tablecast.cli.verify import run

    raise typer.Exit(run(target))


@app.command(epilog="Example: tablecast backup http://127.0.0.1:8080 /backups/shop-monday --user admin")
@on_target
def backup(
    target: Target,
    to: Annotated[
        Path, typer.Argument(metavar="TARGET", help="Where the copy goes; must not exist yet.", show_default=False)
    ],
) -> None:
    """Copy a database, whole or not at all. The copy is itself a database.

    A server sends its own, while it serves, into TARGET on this machine; this takes dba.
    """
    from tablecast.cli.backup import back_up

    back_up(target, to)


@app.command(epilog="Example: tablecast restore /backups/shop-monday ./shop")
def restore(
    backup_path: Annotated[str, typer.Argument(metavar="BACKUP", help="A backup.", show_default=False)],
    path: Annotated[str, typer.Argument(help="Where the database goes; must not exist yet.", show_default=False)],
    check: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Verify the copy before it takes its place.")
    ] = True,
) -> None:
    """Make a database of a backup, whole or not at all."""
    require_local(backup_path, "restore")
    require_local(path, "restore")
    from tablecast.cli.backup import restore_from

    restore_from(Path(backup_path), Path(path), check)
