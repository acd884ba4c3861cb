"""`tablecast pipelines list`: system.pipelines, made for a person to look at."""

from __future__ import annotations

from rich.table import Table

from tablecast.cli.console import visible
from tablecast.cli.opening import Opened
from tablecast.cli.target import Target
from tablecast.cli.topics import show, table_of

_PIPELINES = """
SELECT name, target, state, rows_in, rows_out, rejected, lag, restarts, last_error FROM system.pipelines ORDER BY name
"""
_COLOURS = {"running": "green", "failed": "red", "backing_off": "red", "not attached": "yellow"}


def show_pipelines(target: Target, interval_seconds: float | None) -> None:
    show(target, pipelines_table, interval_seconds)


def pipelines_table(database: Opened) -> Table:
    table = table_of("pipeline", "into", "state", "in", "out", "rejected", "lag", "restarts", "last error")
    for name, into, state, *counts, error in database.query(_PIPELINES):
        numbers = ["" if count is None else f"{count:,}" for count in counts]
        table.add_row(name, into, state, *numbers, visible(error or ""), style=_COLOURS.get(state))
    return table
