"""What users can rely on: the exported names, and the methods and parameters of what they open.

A change here is a change for every user: it is meant to be noticed.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import tablecast
from tablecast import (
    AsyncClient,
    AsyncConsumer,
    AsyncDatabase,
    AsyncLiveTable,
    Client,
    Consumer,
    Database,
    LiveChange,
    LiveTable,
    Session,
)
from tablecast.client.bulk import BulkClient
from tablecast.client.live import AsyncLiveChanges
from tablecast.client.live_sync import LiveChanges
from tablecast.sql.aio import AsyncSession

EXPORTED = [
    "EARLIEST",
    "LATEST",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDatabase",
    "AsyncLiveTable",
    "Client",
    "Consumed",
    "Consumer",
    "Database",
    "LiveChange",
    "LiveTable",
    "Message",
    "Op",
    "Result",
    "Retry",
    "Role",
    "Session",
    "Start",
    "StartKind",
    "TablecastError",
    "connect",
    "connect_async",
    "open",
    "open_async",
]

_REQUEST = "sql, params=(), *, idempotency_key=None"
_LIVE = "sql, params=(), *, namespace=None"
CONSUME = (
    "topic, *, group=None, start=None, partition=None, limit=100, timeout_seconds=0.0, consumer=None, "
    "visibility_seconds=60.0, auto_offset_reset=False, ack=None"
)
BOTH_SESSIONS = {
    "execute": _REQUEST,
    "execute_all": _REQUEST,
    "query": "sql, params=()",
    "insert": "table, rows, *, columns=None, mode='insert', idempotency_key=None",
    "begin": "",
    "commit": "",
    "rollback": "",
    "transaction": "",
    "in_transaction": "<property>",
    "consume": CONSUME,
    "read_arrow": "topic, *, start=None, partition=None",
    "stream_arrow": "topic, *, start=None, partition=None",
    "ack": "topic, group, upto_offset=None, *, partition=0, offsets=(), consumer=None",
    "nack": "topic, group, offsets, *, partition=0, reason='nack', consumer=None",
    "extend": "topic, group, consumer, visibility_seconds",
    "release": "topic, group, consumer",
    "live": _LIVE,
    "live_table": _LIVE,
}
BOTH_DATABASES = {
    "engine": "<property>",
    "session": "user, role=<Role.USER: 1>, namespace='default'",
    "run_job": "name",
    "verify": "progress=None",
    "interrupt": "",
    "backup": "path",
    "replication": "<property>",
    "replicate": "url, *, node_id=None, prefix='tablecast', overflow='coalesce', outbox_events=10000, "
    "compare_seconds=60.0, ca_file=''",
    "consumer": "topic, group, *, name=None, batch=100, visibility_seconds=60.0",
    "close": "",
}
SYNC_SESSION = {
    "topic": "name",
    "twin": "",
}
# For whoever passes messages on, as the server does: who waits, and answers that reached nobody.
ASYNC_SESSION = {
    "give_back": "topic, group, consumed",
    "consume_log": "topic, request, ending=None",
    "consume_told": "topic, request, prompt=None, ending=None",
    "started": _REQUEST,
    "started_each": "sql, params_of_each, idempotency_keys",
    "started_rows": "table, rows, columns, mode, idempotency_key",
}
ASYNC_DATABASE = {"parked": "<property>", "sleeping": "<property>", "end_waits": ""}
# What a server is asked for: what an embedded database is, but what belongs to its owner.
REMOTE = (
    "execute", "execute_all", "query", "insert", "consume", "read_arrow", "stream_arrow", "ack", "nack", "extend", "release",
    "live", "live_table", "transaction",
)  # fmt: skip
SYNC_DATABASE = {
    "authenticate": "name, password, *, request_id=None",
    "sign_in": "name, password, *, request_id=None",
    "ensure_system_account": "password=None",
    "audit": "actor, action, target='', outcome=<Outcome.OK: 'ok'>, detail='', request_id=None",
}
CLIENT = {name: BOTH_SESSIONS[name] for name in REMOTE} | {
    "consumer": BOTH_DATABASES["consumer"],
    "verify": BOTH_DATABASES["verify"],
    "backup": "path, progress=None",
    "close": BOTH_DATABASES["close"],
}
BULK_CLIENT = {
    "sql": _REQUEST,
    "describe_topic": "topic, *, timestamp_ms=None",
    "stream_log": "topic, partition, start, end, *, topic_id=None",
    "open_snapshot": "table, *, splits=1",
    "read_snapshot": "snapshot_id, start=None, end=None, *, seq=False",
    "close_snapshot": "snapshot_id",
    "begin_load": "table, writer_id, batch_id, *, mode='insert', kind='rows', op_column=None",
    "begin_backfill": "source, writer_id, batch_id=0",
    "put_part": "load_id, part, source, *, attempt='0', content_type='application/vnd.apache.arrow.stream'",
    "commit_load": "load_id, parts, *, duplicates=None, patience_seconds=21600.0",
    "abort_load": "load_id",
    "report_pipeline": "name, report",
    "close": "",
}
LIVE_CHANGES = {"columns": "<property>", "close": ""}
LIVE_TABLE = {
    "columns": "<property>",
    "rows": "<property>",
    "seq": "<property>",
    "ready": "*, timeout_seconds=None",
    "changed": "since=None, *, timeout_seconds=None",
    "close": "",
}
CONSUMER = {"run": "handler, *, concurrency=1, retry=None, dead_letter=None, until_idle=False", "stop": ""}


def parameters(method: Any) -> str:
    signature = inspect.signature(method)
    kept = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values() if p.name != "self"]
    shown = str(inspect.Signature(kept))
    return shown[1:-1]


def surface(cls: type) -> dict[str, str]:
    found = {}
    for name in dir(cls):
        if not name.startswith("_"):
            member = inspect.getattr_static(cls, name)
            found[name] = "<property>" if isinstance(member, property) else parameters(member)
    return found


def test_exported_names() -> None:
    assert tablecast.__all__ == EXPORTED
    assert all(hasattr(tablecast, name) for name in EXPORTED)


def test_a_star_import_brings_exactly_these() -> None:
    names: dict[str, Any] = {}
    exec("from tablecast import *", names)  # what a user's module does
    assert sorted(set(names) - {"__builtins__"}) == sorted(EXPORTED)


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (Session, BOTH_SESSIONS | SYNC_SESSION),
        (Database, BOTH_SESSIONS | BOTH_DATABASES | SYNC_SESSION | SYNC_DATABASE),
        (AsyncSession, BOTH_SESSIONS | ASYNC_SESSION),
        (AsyncDatabase, BOTH_SESSIONS | BOTH_DATABASES | ASYNC_SESSION | ASYNC_DATABASE),
        (Client, CLIENT),
        (AsyncClient, CLIENT),
        (BulkClient, BULK_CLIENT),
        (Consumer, CONSUMER),
        (AsyncConsumer, CONSUMER),
        (LiveChanges, LIVE_CHANGES),
        (AsyncLiveChanges, LIVE_CHANGES),
        (LiveTable, LIVE_TABLE),
        (AsyncLiveTable, LIVE_TABLE),
    ],
)
def test_methods_and_parameters(cls: type, expected: dict[str, str]) -> None:
    assert surface(cls) == expected


def test_the_async_twin_takes_what_the_sync_one_takes() -> None:
    database, twin = surface(Database), surface(AsyncDatabase)
    own = ASYNC_SESSION | ASYNC_DATABASE
    assert {name: database[name] for name in twin if name not in own} | own == twin


def test_every_method_of_the_async_twin_is_awaited() -> None:
    methods = [name for name, shown in surface(AsyncDatabase).items() if shown != "<property>"]
    called = [name for name in methods if not inspect.iscoroutinefunction(getattr(AsyncDatabase, name))]
    assert called == [
        "consumer", "end_waits", "live", "live_table", "started", "started_each", "started_rows", "stream_arrow", "transaction",
    ], "at once; `async for`; `async with`"  # fmt: skip


def test_what_a_live_query_tells() -> None:
    assert LiveChange.__struct_fields__ == ("op", "key", "row", "seq", "initial", "reset")


def test_a_database_is_a_session() -> None:
    assert issubclass(Database, Session)
    assert issubclass(AsyncDatabase, AsyncSession)


def test_both_ways_to_open_take_the_same_settings() -> None:
    names = list(inspect.signature(tablecast.open).parameters)
    assert names == [
        "path", "durability", "create", "clock", "jobs_interval_seconds", "query_memory_mb", "query_timeout_seconds",
        "changes_kept_seconds", "changes_max_bytes",
    ]  # fmt: skip
    assert parameters(tablecast.open_async) == "path, *, waits=True, **settings"


def test_both_ways_to_connect_take_the_same_settings() -> None:
    assert parameters(tablecast.connect) == parameters(tablecast.connect_async)
    assert list(inspect.signature(tablecast.connect).parameters) == [
        "url", "user", "password", "token", "namespace", "timeout_seconds", "retry",
    ]  # fmt: skip


def test_every_public_name_says_what_it_is() -> None:
    undocumented = [name for name in EXPORTED if not inspect.getdoc(getattr(tablecast, name))]
    assert undocumented == []
