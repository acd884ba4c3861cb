"""What `tablecast copy` understands."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tablecast.cli.options import Format, on_target
from tablecast.cli.target import Target

copy_app = typer.Typer(
    name="copy",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Load files into tables, archive and backfill topics, audit: on Spark.",
    epilog="Example: tablecast copy from http://127.0.0.1:8080 app.orders './in/*.csv' --format csv --header",
)


class ReadFormat(StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


class WriteFormat(StrEnum):
    PARQUET = "parquet"
    JSON = "json"
    DELTA = "delta"


class Payload(StrEnum):
    FULL = "full"
    KEY = "key"
    DIFF = "diff"


class Mode(StrEnum):
    INSERT = "insert"
    UPSERT = "upsert"


Master = Annotated[str, typer.Option("--master", help="Where Spark runs: local[*], spark://…, yarn, k8s://…, sc://…")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark, as often as needed.")
]
Output = Annotated[Format, typer.Option("--output", help="How the answer is written.")]
CommitRows = Annotated[
    int | None, typer.Option("--commit-rows", min=1, help="About how many rows are committed together.")
]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="namespace.name, or its alias.", show_default=False)]


@copy_app.command("from", epilog="Example: tablecast copy from ./shop app.orders ./orders.parquet --format parquet")
@on_target
def copy_from(
    target: Target,
    table: Annotated[str, typer.Argument(help="namespace.name of the table.", show_default=False)],
    source: Annotated[str, typer.Argument(metavar="FILES", help="A file, directory or pattern.", show_default=False)],
    file_format: Annotated[ReadFormat, typer.Option("--format", help="Of the files.", show_default=False)],
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="A,B,…", help="The columns that the files give.")
    ] = None,
    mode: Annotated[Mode, typer.Option("--mode", help="What happens to rows whose key is there.")] = Mode.INSERT,
    header: Annotated[bool, typer.Option("--header", help="CSV: the first line names the columns.")] = False,
    delimiter: Annotated[str | None, typer.Option("--delimiter", help="CSV: what separates values (,).")] = None,
    quote: Annotated[str | None, typer.Option("--quote", help='CSV: what encloses values (").')] = None,
    null: Annotated[str | None, typer.Option("--null", help="CSV: what stands for NULL (nothing).")] = None,
    multiline: Annotated[
        bool, typer.Option("--multiline", help="CSV, JSON: a record may span lines; files are then not cut.")
    ] = False,
    rejects: Annotated[
        str | None, typer.Option("--rejects", metavar="DIR", help="Where rows go that do not fit, with the reason.")
    ] = None,
    max_rejects: Annotated[int | None, typer.Option("--max-rejects", min=0, help="Stop when there are more.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, load nothing.")] = False,
    job: Annotated[str | None, typer.Option("--job", help="A name: the same job loads the same chunks once.")] = None,
    commit_rows: CommitRows = None,
    master: Master = "local[*]",
    conf: Conf = None,
    output: Output = Format.TABLE,
) -> None:
    """Load files into a table.

    Run again after a kill it goes on where it was; run again after its end it does nothing.
    """
    from tablecast.cli.copy import Request, quoted, run, statement

    options = {
        "FORMAT": file_format, "MODE": mode, "HEADER": header or None, "DELIMITER": delimiter, "QUOTE": quote,
        "NULL": null, "MULTILINE": multiline or None, "REJECTS": rejects, "MAX_REJECTS": max_rejects,
        "DRY_RUN": dry_run or None, "JOB": job, "COMMIT_ROWS": commit_rows,
    }  # fmt: skip
    named = f" ({columns})" if columns else ""
    text = statement(f"COPY {table}{named} FROM {quoted(source)}", options)
    run(Request(target, text, master, tuple(conf or ()), output))


@copy_app.command("to", epilog="Example: tablecast copy to ./shop app.order_events ./archive --format parquet --decode")
@on_target
def copy_to(
    target: Target,
    topic: TopicName,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Where the files go.", show_default=False)],
    file_format: Annotated[WriteFormat, typer.Option("--format", help="Of the files.")] = WriteFormat.PARQUET,
    decode: Annotated[bool, typer.Option("--decode", help="The source table's columns instead of messages.")] = False,
    source_table: Annotated[
        str | None, typer.Option("--source-table", help="With --decode: which, if there are several.")
    ] = None,
    starting: Annotated[
        str | None,
        typer.Option("--starting", metavar="earliest|latest|OFFSETS|TIME", help="Where the first run begins."),
    ] = None,
    ending: Annotated[
        str | None, typer.Option("--ending", metavar="latest|OFFSETS|TIME", help="Where this run ends.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would be written, write nothing.")] = False,
    commit_rows: CommitRows = None,
    master: Master = "local[*]",
    conf: Conf = None,
    output: Output = Format.TABLE,
) -> None:
    """Copy a topic's messages into files; run again, it adds what is new."""
    from tablecast.cli.copy import Request, quoted, run, statement

    options = {
        "FORMAT": file_format, "DECODE": decode or None, "STARTING": starting, "ENDING": ending,
        "DRY_RUN": dry_run or None, "COMMIT_ROWS": commit_rows,
    }  # fmt: skip
    named = f", SOURCE_TABLE {source_table}" if source_table else ""
    text = statement(f"COPY TOPIC {topic} TO {quoted(directory)}", options)
    run(Request(target, text[:-1] + named + ")", master, tuple(conf or ()), output))


@copy_app.command("audit", epilog="Example: tablecast copy audit http://127.0.0.1:8080 app.order_events")
@on_target
def audit(
    target: Target, topic: TopicName, master: Master = "local[*]", conf: Conf = None, output: Output = Format.TABLE
) -> None:
    """Prove that every row's last change is on a topic, once. Leaves with 1 if it is not so."""
    from tablecast.cli.copy import Request, run

    result = run(Request(target, f"AUDIT TOPIC {topic}", master, tuple(conf or ()), output))
    raise typer.Exit(0 if result.message.endswith(": sound") else 1)


@copy_app.command(
    "backfill", epilog="Example: tablecast copy backfill http://127.0.0.1:8080 app.order_events app.orders --on any"
)
@on_target
def backfill(
    target: Target,
    topic: TopicName,
    table: Annotated[str, typer.Argument(help="namespace.name of the new source.", show_default=False)],
    on: Annotated[str, typer.Option("--on", metavar="OPS", help="any, or some of insert,update,delete.")] = "any",
    where: Annotated[str | None, typer.Option("--where", metavar="CONDITION", help="Which rows.")] = None,
    partition_by: Annotated[
        str | None, typer.Option("--partition-by", metavar="EXPRESSION", help="What decides the partition.")
    ] = None,
    payload: Annotated[Payload, typer.Option("--payload", help="What a message says.")] = Payload.FULL,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the messages, add nothing.")] = False,
    master: Master = "local[*]",
    conf: Conf = None,
    output: Output = Format.TABLE,
) -> None:
    """Add a source to a topic, with messages of all rows that the table has: in one commit, or not at all."""
    from tablecast.cli.copy import Request, run

    filtered = f" WHERE {where}" if where else ""
    spread = f" PARTITION BY {partition_by}" if partition_by else ""
    options = f"payload = '{payload}', backfill = 'spark'" + (", dry_run = TRUE" if dry_run else "")
    text = f"ALTER TOPIC {topic} ADD SOURCE {table} ON {on}{filtered}{spread} WITH ({options})"
    run(Request(target, text, master, tuple(conf or ()), output))
