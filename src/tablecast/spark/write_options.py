"""Options of `df.write|writeStream.format("tablecast")`, checked on the driver.

    table, or topic           where the rows go: a table, or the one that feeds a topic (topic_target)
    mode                      insert (default), upsert, delete (by primary key)
    opColumn                  a column that says of each row insert, update, upsert or delete; instead of mode
    bulk                      auto (default), always, never: whether executors finish rows and messages themselves
    writerId, batchId         of a batch job: writes done under the same two are done once, however often they are run

A stream is known by its query id, which its checkpoint keeps, and its batches are numbered by Spark: there is nothing to
give. A writerId on a stream is refused: with a new checkpoint, batch ids would begin again and be taken for replays. Its
checkpointLocation is an option of Spark's; it is looked at to make it durable before a commit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tablecast.client.bulk import Server
from tablecast.client.wire import DEFAULT_NAMESPACE
from tablecast.errors import InvalidRequest
from tablecast.spark.options import server_options, target

MODES = ("insert", "upsert", "delete")
CHANGES = "changes"  # the mode of a load whose rows carry their op
BULK = ("auto", "always", "never")
MAX_WRITER_ID_BYTES = 200  # it is part of a key, kept for every writer of a table


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`mode` is `changes` when rows carry their op. `table` is empty while there is a `topic` to be asked for it."""

    server: Server
    table: str
    namespace: str = DEFAULT_NAMESPACE
    mode: str = "insert"
    op_column: str | None = None
    bulk: str = "auto"
    writer_id: str | None = None
    batch_id: int = 0
    checkpoint: str | None = None
    topic: str | None = None


def write_options(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> WriteOptions:
    server = server_options(given, environment)
    topic, table = target(given)
    options = {name.lower(): text for name, text in given.items()}
    mode, op_column = _mode(options)
    return WriteOptions(
        server,
        table or "",
        options.get("namespace", DEFAULT_NAMESPACE),
        mode,
        op_column,
        _bulk(options, mode),
        _writer_id(options),
        _batch_id(options),
        options.get("checkpointlocation"),
        topic,
    )


def refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise InvalidRequest('only .mode("append") writes to tablecast: rows are added or, with option "mode", changed')


def refuse_writer_id(options: WriteOptions) -> None:
    if options.writer_id is not None:
        raise InvalidRequest('option "writerId" is for batch jobs: a stream is known by the query id in its checkpoint')


def _mode(options: Mapping[str, str]) -> tuple[str, str | None]:
    op_column = options.get("opcolumn")
    if op_column is not None:
        if "mode" in options:
            raise InvalidRequest('give option "mode" or option "opColumn", not both: the op of each row is its mode')
        return CHANGES, op_column
    return _choice(options, "mode", MODES), None


def _bulk(options: Mapping[str, str], mode: str) -> str:
    bulk = _choice(options, "bulk", BULK)
    if bulk == "always" and mode != "insert":
        raise InvalidRequest(f'option "bulk" is "always", and that goes with inserts only, not with {mode}')
    return bulk


def _choice(options: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    text = options.get(name, known[0]).strip().lower()
    if text not in known:
        raise InvalidRequest(f'option "{name}" is one of {", ".join(known)}, not {text!r}', option=name)
    return text


def _writer_id(options: Mapping[str, str]) -> str | None:
    writer_id = options.get("writerid")
    if writer_id is not None and not 1 <= len(writer_id.encode()) <= MAX_WRITER_ID_BYTES:
        raise InvalidRequest(f'option "writerId" is a text of 1 to {MAX_WRITER_ID_BYTES} bytes', option="writerId")
    return writer_id


def _batch_id(options: Mapping[str, str]) -> int:
    text = options.get("batchid")
    if text is None:
        return 0
    if "writerid" not in options:
        raise InvalidRequest('option "batchId" numbers the writes of a "writerId", and there is none')
    if not (text.isascii() and text.isdecimal() and int(text) < 2**63):
        raise InvalidRequest(f'option "batchId" is a whole number from 0, not {text!r}', option="batchId")
    return int(text)
