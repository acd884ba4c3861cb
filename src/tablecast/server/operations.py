"""What the API offers, as the description tells it: every call with its types, examples and errors.

The types are the very structs that the handlers decode into and encode from; the examples are checked against them by a
test, which also compares this list with the routes.
"""

from __future__ import annotations

from typing import Any

from tablecast.engine.pipelines import PipelineReport
from tablecast.server import (
    api_auth,
    api_pipelines,
    api_rows,
    api_sql,
    api_status,
    api_topics,
    api_transactions,
    api_writes,
    messages,
)
from tablecast.server.bodies import ARROW, EVENTS, JSON, LOG, MSGPACK, NDJSON, Rows
from tablecast.server.bulk_operations import BULK_OPERATIONS
from tablecast.server.operation import (
    BINARY,
    HTML,
    NAMESPACE,
    ONCE,
    SIGNED_IN,
    TEXT,
    WITH_BODY,
    WITHIN,
    Operation,
    Parameter,
)
from tablecast.server.tokens import Tokens

_RESULT = {
    "schema": [{"name": "id", "type": "BIGINT"}, {"name": "amount", "type": "DECIMAL(12,2)"}],
    "rows": [["7", "12.50"]],
    "row_count": 1,
    "message": "",
    "seq": None,
}
_MESSAGE = {
    "topic_id": 3,
    "partition_id": 0,
    "offset": 17,
    "message_id": "7249118272718848000",
    "source_table": "app.orders",
    "op": "insert",
    "ts": 1760000000000,
    "payload_mode": "full",
    "key": '["7"]',
    "payload": "eyJfdGFibGUiOiAiYXBwLm9yZGVycyIsICJpZCI6ICI3In0=",
    "user_id": None,
    "seq": 1234,
    "content_hash": "1844674407370955161",
    "delivery": 1,
}
_TOKENS = {
    "access_token": "eyJhbGciOiJIUzI1NiJ9.access.signature",
    "refresh_token": "eyJhbGciOiJIUzI1NiJ9.refresh.signature",
    "expires_in": 900,
    "user": "ann",
    "role": "service",
    "token_type": "Bearer",
}
_TRANSACTION = Parameter(
    "transaction", "path", "the id that beginning it answered", example="5f0c2f6be7b54ff0a4b9c8f15f0c2f6b"
)
_CLAIM = {"topic": "app.order_events", "group_id": "billing", "consumer": "worker-1"}

OPERATIONS = (
    Operation(
        "POST", "/v1/api/sql", "sql", "Runs SQL, one statement or several.",
        takes={JSON: api_sql.SqlRequest, MSGPACK: api_sql.SqlRequest},
        example={"sql": "SELECT id, amount FROM app.orders WHERE id = ?", "params": [7], "namespace": "app"},
        answers={JSON: api_sql.SqlAnswer, MSGPACK: api_sql.SqlPacked, ARROW: BINARY},
        answer_example={"status": "success", "took_ms": 0.6, "results": [_RESULT]},
        answer_headers={
            "X-Message": "Arrow only: what the last statement says it did",
            "X-Row-Count": "Arrow only: its rows",
            "X-Seq": "Arrow only: its commit number",
        },
        errors=(*WITH_BODY, *SIGNED_IN, 404, 409, 416, 422, 504),
        parameters=(ONCE, WITHIN),
    ),
    Operation(
        "POST", "/v1/api/transactions", "begin", "Begins a transaction that spans requests.",
        answers={JSON: api_transactions.BeginAnswer, MSGPACK: api_transactions.BeginAnswer},
        answer_example={"transaction_id": "5f0c2f6be7b54ff0a4b9c8f15f0c2f6b", "idle_seconds": 60.0},
        errors=(400, *SIGNED_IN),
    ),
    Operation(
        "POST", "/v1/api/transactions/{transaction}/commit", "commit", "Commits a transaction; safe to repeat.",
        answers={JSON: api_rows.RowsAnswer, MSGPACK: api_rows.RowsAnswer},
        answer_example={"status": "success", "row_count": 2, "seq": 1234, "message": "COMMIT"},
        errors=(400, *SIGNED_IN, 409, 422),
        parameters=(_TRANSACTION,),
    ),
    Operation(
        "DELETE", "/v1/api/transactions/{transaction}", "rollback", "Rolls a transaction back.",
        answers={JSON: api_transactions.RollbackAnswer, MSGPACK: api_transactions.RollbackAnswer},
        answer_example={"rolled_back": True},
        errors=(400, *SIGNED_IN),
        parameters=(_TRANSACTION,),
    ),
    Operation(
        "POST", "/v1/api/tables/{table}/rows", "rows", "Writes rows of one table, all of them as one commit or none.",
        takes={JSON: Rows, MSGPACK: Rows, NDJSON: BINARY, ARROW: BINARY},
        example=[{"id": 7, "amount": "12.50"}],
        answers={JSON: api_rows.RowsAnswer, MSGPACK: api_rows.RowsAnswer},
        answer_example={"status": "success", "row_count": 1, "seq": 1234, "message": "INSERT 1"},
        errors=(*WITH_BODY, *SIGNED_IN, 404, 409, 422, 504),
        parameters=(
            Parameter("table", "path", "namespace.name", example="app.orders"),
            Parameter(
                "mode", "query", "insert (default), upsert, or delete by primary key",
                {"type": "string", "enum": ["insert", "upsert", "delete"]},
            ),
            Parameter("columns", "query", "names, by comma, for rows that are arrays"),
            NAMESPACE,
            ONCE,
            WITHIN,
        ),
    ),
    Operation(
        "POST", "/v1/api/writes", "writes", "Many independent writes; each succeeds or fails on its own.",
        takes={JSON: api_writes.WritesRequest, MSGPACK: api_writes.WritesRequest},
        example={
            "writes": [
                {"table": "app.orders", "rows": [{"id": 1}], "mode": "insert", "idempotency_key": "a"},
                {"sql": "INSERT INTO app.orders (id) VALUES (?)", "params": [2], "idempotency_key": "b"},
            ]
        },
        answers={JSON: api_writes.WritesAnswer, MSGPACK: api_writes.WritesPacked},
        answer_example={
            "results": [
                {"row_count": 1, "seq": 88, "message": "INSERT 1"},
                {"error": {"code": "duplicate_key", "message": "app.orders already has a row with id = 2", "details": {}}},
            ]
        },
        errors=(*WITH_BODY, *SIGNED_IN),
    ),
    Operation(
        "POST", "/v1/api/topics/consume", "consume", "Reads messages; as a group it claims them. Waits if there are none.",
        takes={JSON: api_topics.ConsumeRequest, MSGPACK: api_topics.ConsumeRequest},
        example={
            "topic": "app.order_events", "group_id": "billing", "start": {"type": "Earliest"}, "limit": 100,
            "partition_id": None, "timeout_seconds": 0, "consumer": "worker-1", "visibility_seconds": 60,
            "auto_offset_reset": False, "ack": None,
        },
        answers={JSON: messages.ConsumeAnswer, MSGPACK: messages.ConsumePacked, ARROW: BINARY, LOG: BINARY},
        answer_example={
            "messages": [_MESSAGE], "next_offset": 18, "next_offsets": {"0": 18}, "has_more": False, "skipped": [],
            "consumer": "worker-1", "waited_seconds": 0.0,
        },
        answer_headers={
            "X-Next-Offset": "Arrow only: where a stateless reader of one partition goes on",
            "X-Has-More": "Arrow only: true or false",
            "X-Skipped": "Arrow only: JSON, the ranges that retention took before the group read them",
            "X-Consumer": "Arrow only: whose claim it is",
            "X-Waited-Seconds": "Arrow only: how long it waited",
        },
        errors=(*WITH_BODY, *SIGNED_IN, 404, 409, 416),
    ),
    Operation(
        "POST", "/v1/api/topics/ack", "ack", "Acknowledges messages of a group, or gives them back (nack).",
        takes={JSON: api_topics.AckRequest, MSGPACK: api_topics.AckRequest},
        example={"topic": "app.order_events", "group_id": "billing", "partition_id": 0, "upto_offset": 17},
        answers={JSON: api_topics.AckAnswer, MSGPACK: api_topics.AckAnswer},
        answer_example={"success": True, "acknowledged_offset": 17},
        errors=(*WITH_BODY, *SIGNED_IN, 404, 409, 416),
    ),
    Operation(
        "POST", "/v1/api/topics/extend", "extend", "Renews a consumer's claims.",
        takes={JSON: api_topics.ExtendRequest, MSGPACK: api_topics.ExtendRequest},
        example={**_CLAIM, "visibility_seconds": 60},
        answers={JSON: api_topics.ExtendAnswer, MSGPACK: api_topics.ExtendAnswer},
        answer_example={"held": 5},
        errors=(*WITH_BODY, *SIGNED_IN, 404, 409),
    ),
    Operation(
        "POST", "/v1/api/topics/release", "release", "Gives a consumer's claims back.",
        takes={JSON: api_topics.ReleaseRequest, MSGPACK: api_topics.ReleaseRequest},
        example=_CLAIM,
        answers={JSON: api_topics.ReleaseAnswer, MSGPACK: api_topics.ReleaseAnswer},
        answer_example={"released": 5},
        errors=(*WITH_BODY, *SIGNED_IN, 404, 409),
    ),
    Operation(
        "GET", "/v1/api/topics/{topic}/arrow", "topic", "A whole topic, or a partition, as one Arrow stream.",
        answers={ARROW: BINARY},
        errors=(400, *SIGNED_IN, 404, 416),
        parameters=(
            Parameter("topic", "path", "namespace.name, or an alias", example="app.order_events"),
            Parameter(
                "start", "query", "earliest (default), latest, offset:17 or timestamp:2026-01-31T12:00:00Z",
                example="earliest",
            ),
            Parameter("partition", "query", "one partition only", {"type": "integer", "minimum": 0}),
            NAMESPACE,
        ),
    ),
    Operation(
        "GET", "/v1/api/live", "live", "A live query as a stream of events: its rows, then what every commit changes.",
        answers={EVENTS: BINARY},
        errors=(400, *SIGNED_IN, 404, 409),
        parameters=(
            Parameter("sql", "query", "SELECT columns FROM table [WHERE …] [LIMIT n]: the last n rows to begin with"),
            Parameter("params", "query", "a JSON array with a value for each ?", example="[42]"),
            NAMESPACE,
            Parameter("Last-Event-ID", "header", "the id of the last event that was read: go on from there"),
        ),
    ),
    Operation(
        "POST", "/v1/api/pipelines/{name}/report", "pipeline_report",
        "What a runner says of a pipeline; shown in system.pipelines for 30 seconds.",
        takes={JSON: PipelineReport, MSGPACK: PipelineReport},
        example={
            "state": "running", "runner": "worker-1:4711", "rows_in": 1200, "rows_out": 30, "batch_id": 7,
            "last_batch_ms": 1760000000000, "positions": {"app.order_events": [1200]},
        },
        answers={JSON: api_pipelines.ReportAnswer, MSGPACK: api_pipelines.ReportAnswer},
        answer_example={"desired_state": "running"},
        errors=(*WITH_BODY, *SIGNED_IN),
        parameters=(Parameter("name", "path", "namespace.name", example="app.revenue"),),
    ),
    *BULK_OPERATIONS,
    Operation(
        "POST", "/v1/api/auth/login", "login", "Tokens for a password.",
        takes={JSON: api_auth.LoginRequest, MSGPACK: api_auth.LoginRequest},
        example={"user": "ann", "password": "correct horse battery staple"},
        answers={JSON: Tokens, MSGPACK: Tokens}, answer_example=_TOKENS,
        errors=(*WITH_BODY, 401), public=True,
    ),
    Operation(
        "POST", "/v1/api/auth/refresh", "refresh", "New tokens for a refresh token, which is used up.",
        takes={JSON: api_auth.RefreshRequest, MSGPACK: api_auth.RefreshRequest},
        example={"refresh_token": "eyJhbGciOiJIUzI1NiJ9.refresh.signature"},
        answers={JSON: Tokens, MSGPACK: Tokens}, answer_example=_TOKENS,
        errors=(*WITH_BODY, 401), public=True,
    ),
    Operation(
        "GET", "/v1/api/auth/me", "me", "Who the credentials belong to.",
        answers={JSON: api_auth.MeAnswer, MSGPACK: api_auth.MeAnswer},
        answer_example={"user": "ann", "role": "service"},
        errors=(401,),
    ),
    Operation(
        "GET", "/health", "health", "200 while the process lives.",
        answers={JSON: api_status.StatusAnswer}, answer_example={"status": "ok"}, public=True,
    ),
    Operation(
        "GET", "/ready", "ready", "200 while the server takes writes; 503 while it starts or drains, or cannot write.",
        answers={JSON: api_status.StatusAnswer}, answer_example={"status": "ready"}, public=True,
    ),
    Operation(
        "GET", "/metrics", "metrics", "Metrics in the format of Prometheus. Role service, unless metrics_public is on.",
        answers={TEXT: BINARY}, errors=SIGNED_IN,
    ),
    Operation("GET", "/openapi.json", "openapi", "This description.", answers={JSON: dict[str, Any]}, public=True),
    Operation("GET", "/docs", "docs", "This description as a page.", answers={HTML: BINARY}, public=True),
)  # fmt: skip
