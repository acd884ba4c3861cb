"""What the tests of writing share: a server, a client of it, and Spark's builders with the options to reach it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast import Client, Message, Start, StartKind


class Writing:
    def __init__(self, url: str, client: Client, password: str = PASSWORD) -> None:
        self.url, self.client, self._password = url, client, password

    def options(self, builder: Any, **options: str) -> Any:
        """A builder of Spark's with the server's address and credentials."""
        return builder.format("tablecast").options(url=self.url, user="system", password=self._password, **options)

    def save(self, frame: Any, table: str, **options: str) -> None:
        self.options(frame.write, table=table, **options).mode("append").save()

    def table(self, name: str, columns: str, *, partitions: int = 2) -> str:
        """A table and a topic of all its changes, `{name}_told`."""
        self.client.execute_all(
            f"CREATE TABLE app.{name} ({columns}); CREATE TOPIC app.{name}_told PARTITIONS {partitions};"
            f"ALTER TOPIC app.{name}_told ADD SOURCE app.{name} ON ANY WITH (payload = 'full')"
        )
        return f"app.{name}"

    def rows(self, table: str, columns: str = "*", order: str = "id") -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.client.query(f"SELECT {columns} FROM {table} ORDER BY {order}").rows]

    def messages(self, table: str) -> list[Message]:
        """All of the table's topic, partition after partition."""
        topic = f"{table}_told"
        ids = self.client.query(
            f"SELECT partition_id FROM system.topic_partitions WHERE topic = '{topic}' ORDER BY 1"
        ).rows
        return [message for (partition,) in ids for message in self._whole(topic, partition)]

    def _whole(self, topic: str, partition: int) -> Iterator[Message]:
        start, has_more = tablecast.EARLIEST, True
        while has_more:
            found = self.client.consume(topic, start=start, partition=partition, limit=10_000)
            yield from found.messages
            start, has_more = Start(StartKind.OFFSET, found.next_offset or 0), found.has_more

    def told(self, table: str) -> list[tuple[str, dict[str, Any]]]:
        """Op and row of every message."""
        return [(message.op.label, msgspec.json.decode(message.payload)) for message in self.messages(table)]

    def open_loads(self) -> list[tuple[Any, ...]]:
        return self.client.query("SELECT writer_id, batch_id FROM system.loads WHERE state <> 'committed'").rows


@contextmanager
def writing(directory: Path) -> Iterator[Writing]:
    with ServerThread(directory) as server, tablecast.connect(server.url, user="system", password=PASSWORD) as client:
        client.execute("CREATE NAMESPACE app")
        yield Writing(server.url, client)
