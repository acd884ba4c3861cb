"""What the API offers to those who move much data: loads, snapshots of tables, topics and their logs."""

from __future__ import annotations

from tablecast.codec.log_stream import LOG_STREAM
from tablecast.engine.staging import MAX_PART_NUMBER
from tablecast.server import api_loads, api_log, api_maintenance, api_snapshots
from tablecast.server.bodies import ARROW, JSON, MSGPACK, NDJSON, SEALED, TAR
from tablecast.server.operation import BINARY, NAMESPACE, SIGNED_IN, WITH_BODY, Operation, Parameter

_PLAN = "AZKQkA=="
_COMMITTED = {"seq": 1234, "row_count": 500000, "already": False, "total_rows": 1500000}
_LOAD = Parameter("load", "path", "the id that beginning it answered", example="5f0c2f6be7b54ff0a4b9c8f1")
_SNAPSHOT = Parameter("snapshot", "path", "the id that opening it answered", example="5f0c2f6be7b54ff0a4b9c8f1")
_TOPIC = Parameter("topic", "path", "namespace.name, or an alias", example="app.order_events")
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}

BULK_OPERATIONS = (
    Operation(
        "GET", "/v1/api/topics/{topic}", "describe_topic", "What a topic is: its partitions, sources and their tables.",
        answers={JSON: api_log.TopicAnswer, MSGPACK: api_log.TopicAnswer},
        answer_example={
            "topic_id": 3, "name": "app.order_events", "alias": None,
            "partitions": [{"partition_id": 0, "start_offset": 0, "end_offset": 18, "offset_at_timestamp": 17}],
            "sources": [
                {"table": "app.orders", "op": "insert", "payload": "full", "filter": None, "partition_by": None},
            ],
            "plan": _PLAN,
        },
        errors=(400, *SIGNED_IN, 404, 416),
        parameters=(
            _TOPIC,
            Parameter(
                "timestamp", "query", "ISO 8601 or UTC milliseconds: adds each partition's first offset not older",
                example="2026-01-31T12:00:00Z",
            ),
            NAMESPACE,
        ),
    ),
    Operation(
        "GET", "/v1/api/topics/{topic}/log", "topic_log", "A range of one partition's log, as stored batches.",
        answers={LOG_STREAM: BINARY},
        errors=(400, *SIGNED_IN, 404, 409, 416),
        parameters=(
            _TOPIC,
            Parameter("partition", "query", "default 0", {"type": "integer", "minimum": 0}),
            Parameter("start", "query", "the first offset; default: where the log begins", _NUMBER),
            Parameter("end", "query", "the offset after the last; default: where the log ends", _NUMBER),
            Parameter("topic_id", "query", "the topic's id; if it is another one now, the answer is 409", _NUMBER),
            NAMESPACE,
        ),
    ),
    Operation(
        "POST", "/v1/api/snapshots", "open_snapshot", "Opens a snapshot of a table, and cuts it into ranges.",
        takes={JSON: api_snapshots.SnapshotRequest, MSGPACK: api_snapshots.SnapshotRequest},
        example={"table": "app.orders", "splits": 8},
        answers={JSON: api_snapshots.SnapshotAnswer, MSGPACK: api_snapshots.SnapshotAnswer},
        answer_example={
            "snapshot_id": "5f0c2f6be7b54ff0a4b9c8f1", "seq": 1234, "plan": _PLAN,
            "ranges": [["AAAAAQ==", "AAAAAYAAAAAAAAAH"], ["AAAAAYAAAAAAAAAH", None]],
        },
        errors=(*WITH_BODY, *SIGNED_IN, 404),
    ),
    Operation(
        "GET", "/v1/api/snapshots/{snapshot}/rows", "read_snapshot", "Rows of a snapshot as one Arrow stream.",
        answers={ARROW: BINARY},
        errors=(400, *SIGNED_IN, 404, 410),
        parameters=(
            _SNAPSHOT,
            Parameter("start", "query", "of a range; default: the first row"),
            Parameter("end", "query", "of a range; default: the last row"),
            Parameter("seq", "query", "adds the column _seq", {"type": "string", "enum": ["true", "false"]}),
        ),
    ),
    Operation(
        "DELETE", "/v1/api/snapshots/{snapshot}", "close_snapshot", "Closes a snapshot.",
        answers={JSON: api_snapshots.ClosedAnswer, MSGPACK: api_snapshots.ClosedAnswer},
        answer_example={"closed": True},
        errors=(400, *SIGNED_IN, 404),
        parameters=(_SNAPSHOT,),
    ),
    Operation(
        "POST", "/v1/api/loads", "begin_load", "Begins a load, or finds the one that is open for this batch.",
        takes={JSON: api_loads.BeginRequest, MSGPACK: api_loads.BeginRequest},
        example={"table": "app.orders", "writer_id": "job:nightly", "batch_id": 7, "mode": "insert", "kind": "rows"},
        answers={JSON: api_loads.BeginAnswer, MSGPACK: api_loads.BeginAnswer},
        answer_example={
            "load_id": "5f0c2f6be7b54ff0a4b9c8f1", "load_number": 42, "committed": None, "plan": _PLAN,
            "created_ms": 1760000000000, "user_id": "ann",
        },
        errors=(*WITH_BODY, *SIGNED_IN, 404, 409, 422),
    ),
    Operation(
        "GET", "/v1/api/loads", "loads", "The loads that are open.",
        answers={JSON: api_loads.LoadsAnswer, MSGPACK: api_loads.LoadsAnswer},
        answer_example={"loads": []},
        errors=(400, *SIGNED_IN),
    ),
    Operation(
        "PUT", "/v1/api/loads/{load}/parts/{part}", "put_part", "Stages a part of a load: durable, and invisible.",
        takes={ARROW: BINARY, SEALED: BINARY, NDJSON: BINARY},
        answers={JSON: api_loads.PartAnswer, MSGPACK: api_loads.PartAnswer},
        answer_example={"part": 0, "attempt": "0", "rows": 250000, "bytes": 31457280},
        errors=(*WITH_BODY, *SIGNED_IN, 404, 409, 422),
        parameters=(
            _LOAD,
            Parameter("part", "path", "its number", {"type": "integer", "minimum": 0, "maximum": MAX_PART_NUMBER}, 0),
            Parameter(
                "attempt", "query", "which try this is: only those named in the commit count",
                {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
            ),
        ),
    ),
    Operation(
        "POST", "/v1/api/loads/{load}/commit", "commit_load", "Commits the parts of a load as one commit.",
        takes={JSON: api_loads.CommitRequest, MSGPACK: api_loads.CommitRequest},
        example={"parts": [[0, "0"], [1, "0"]]},
        answers={JSON: api_loads.CommittedOut, MSGPACK: api_loads.CommittedOut},
        answer_example=_COMMITTED,
        errors=(*WITH_BODY, *SIGNED_IN, 404, 409, 422),
        parameters=(_LOAD,),
    ),
    Operation(
        "POST", "/v1/api/backup", "backup", "The whole database as a tar, its marker last. Takes dba.",
        answers={TAR: BINARY},
        errors=(400, *SIGNED_IN, 409),
        answer_headers={"Content-Length": "of the tar: fewer bytes are no backup"},
    ),
    Operation(
        "POST", "/v1/api/verify", "verify", "Proves the database sound: lines of progress, then the report. Takes dba.",
        answers={NDJSON: api_maintenance.VerifyAnswer},
        errors=(400, *SIGNED_IN, 409),
    ),
    Operation(
        "DELETE", "/v1/api/loads/{load}", "abort_load", "Forgets a load and what was staged for it.",
        answers={JSON: api_loads.AbortAnswer, MSGPACK: api_loads.AbortAnswer},
        answer_example={"aborted": True},
        errors=(400, *SIGNED_IN, 404, 409),
        parameters=(_LOAD,),
    ),
)  # fmt: skip
