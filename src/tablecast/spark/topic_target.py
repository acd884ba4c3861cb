"""Writing to a topic: `df.write|writeStream.option("topic", …)`.

A message tells of a change of a row, so rows for a topic go into the table that feeds it: the same commit, the same
sources, the same messages as a write to that table, on this topic and on every other that the table feeds. That says
where to only if there is one such table.
"""

from __future__ import annotations

from dataclasses import replace

from tablecast.client.bulk import BulkClient
from tablecast.errors import InvalidRequest
from tablecast.model.names import spelled
from tablecast.spark.write_options import WriteOptions


def into_table(options: WriteOptions, client: BulkClient) -> WriteOptions:
    """The same write with the table named. Raises InvalidRequest unless the topic has exactly one source table."""
    if options.topic is None:
        return options
    said = client.describe_topic(options.topic)
    tables = sorted(spelled(table.full_name) for table in said.tables)
    if len(tables) != 1:
        raise _not_one(said.name, tables)
    return replace(options, table=tables[0], topic=None)


def _not_one(topic: str, tables: list[str]) -> InvalidRequest:
    if not tables:
        return InvalidRequest(
            f"topic {topic} has no source table, and rows are written to tables: ALTER TOPIC {topic} ADD SOURCE gives it one; "
            'else name a table with option "table"',
            topic=topic,
        )
    return InvalidRequest(
        f"topic {topic} has {len(tables)} source tables, {', '.join(tables)}: say which one the rows go into with option "
        '"table" instead of "topic"',
        topic=topic,
    )
