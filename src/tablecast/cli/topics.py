"""`tablecast topics` and `tablecast groups`: the system tables, made for a person to look at."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Group
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tablecast.cli.console import output, visible
from tablecast.cli.interrupt import interruptible
from tablecast.cli.opening import Opened, opened
from tablecast.cli.target import Target
from tablecast.client.delivery import PASSING

BAR_WIDTH = 20
BEHIND, FAR_BEHIND = "yellow", "red"
FAR_SHARE = 0.5  # of the log, from where a lag is red

_TOPICS = """
SELECT namespace || '.' || name, alias, partitions, sources, messages, bytes, retention_seconds, retention_max_bytes
FROM system.topics ORDER BY namespace, name
"""
_GROUPS = """
SELECT g.topic, g.group_id, g.partition_id, g.committed, g.claimed, g.end_offset, g.lag, g.lag_seconds, o.messages
FROM system.topic_groups g JOIN system.topic_partitions o ON o.topic = g.topic AND o.partition_id = g.partition_id
ORDER BY g.topic, g.group_id, g.partition_id
"""


def show_topics(target: Target, interval_seconds: float | None) -> None:
    show(target, topics_table, interval_seconds)


def show_groups(target: Target, interval_seconds: float | None) -> None:
    show(target, groups_table, interval_seconds)


def show(target: Target, make: Callable[[Opened], Table], interval_seconds: float | None) -> None:
    with opened(target) as database:
        if interval_seconds is None:
            output().print(make(database))
            return
        table = make(database)
        with interruptible() as check_interrupt, Live(table, console=output(), auto_refresh=False) as live:
            while True:
                check_interrupt()
                time.sleep(interval_seconds)
                said = ""
                try:
                    table = make(database)
                except PASSING as error:  # a server that is away: what was seen last stays
                    said = f"not up to date: {visible(error.message)}"
                live.update(Group(table, Text(said, style="red")) if said else table, refresh=True)


def topics_table(database: Opened) -> Table:
    table = table_of("topic", "alias", "partitions", "sources", "messages", "size", "kept for", "kept up to")
    for name, alias, partitions, sources, messages, size, seconds, max_bytes in database.query(_TOPICS):
        table.add_row(
            name, visible(alias or ""), f"{partitions:,}", f"{sources:,}", f"{messages:,}", decimal(size),
            "ever" if seconds is None else duration(seconds), "any size" if max_bytes is None else decimal(max_bytes),
        )  # fmt: skip
    return table


def groups_table(database: Opened) -> Table:
    table = table_of("topic", "group", "partition", "committed", "claimed", "end", "lag", "", "behind")
    for topic, group, partition, committed, claimed, end, lag, seconds, kept in database.query(_GROUPS):
        table.add_row(
            topic, visible(group), f"{partition}", f"{committed:,}", f"{claimed:,}", f"{end:,}", f"{lag:,}",
            lag_bar(lag, kept), "" if not lag else "?" if seconds is None else duration(seconds),
            style=None if lag else "green",
        )  # fmt: skip
    return table


def lag_bar(lag: int, kept: int) -> ProgressBar:
    """Full: nothing of what the log keeps was acknowledged."""
    colour = FAR_BEHIND if lag >= FAR_SHARE * kept else BEHIND
    return ProgressBar(
        max(kept, 1), min(lag, kept), BAR_WIDTH, style="dim", complete_style=colour, finished_style=colour
    )


def duration(seconds: float) -> str:
    """In the greatest unit that it fills at least once: 90 s, 2.5 h."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{round(seconds / size, 1):g} {unit}"
    return f"{round(seconds, 1):g} s"


def table_of(*headings: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        named = heading in ("topic", "alias", "group", "", "pipeline", "into", "state", "last error")
        table.add_column(heading, justify="left" if named else "right", overflow="fold")
    return table
