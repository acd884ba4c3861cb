"""The pages about stored formats are true: every example in them is what the code writes and reads.

A page holds fenced blocks of the form

    ```hex NAME
    01                format version
    00 00 00 07       two spaces or more end the bytes; the rest is for people
    ```

and, for payloads, ```json NAME with one line. Each NAME is made here from values, and read back where it has a reader.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tablecast.codec import catalog, group, keys
from tablecast.codec.catalog import (
    AuditEntry,
    ChangeStart,
    CommitMark,
    History,
    LoadIntent,
    LoadStamp,
    LoadWriter,
    LogStart,
    User,
    decode_record,
    encode_record,
)
from tablecast.codec.changes import decode_change_head, decode_changes, encode_changes
from tablecast.codec.events import decode_event, encode_event
from tablecast.codec.log import LogBatch, MessageClass, encode_log_batch, stamp
from tablecast.codec.rows import loaded_row_header, row_codec, row_header, row_load, row_stamp
from tablecast.codec.sealed import SealedBatch, SealedPart, read_sealed, write_sealed
from tablecast.codec.sync import AskEvents, Entries, Entry, Listed, decode_question, decode_reply
from tablecast.codec.sync import encode as encode_sync
from tablecast.codec.versions import (
    Kept,
    bucket_key,
    decode_bucket,
    decode_bucket_key,
    decode_version,
    decode_version_key,
    encode_bucket,
    encode_version,
    version_key,
)
from tablecast.core.merkle import bucket_of, entry_sum
from tablecast.core.payload import PayloadEncoder
from tablecast.core.routing import Append, partition_of
from tablecast.engine.dedup import decode_seen, dedup_key, encode_seen
from tablecast.engine.idempotency import Remembered, decode_remembered, encode_remembered, idempotency_key
from tablecast.model.change import Op
from tablecast.model.replication import Epoch, Event, Node, OutboxMark, Quarantined, SeenEvents, Version
from tablecast.model.schema import Column, ColumnType, Role, TableKind, TableSchema, TypeName
from tablecast.model.topic import PayloadMode
from tablecast.storage.base import Family

PAGES = Path(__file__).parents[2] / "docs" / "formats"
BLOCK = re.compile(r"^```(hex|json) ([a-z-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEX_LINE = re.compile(r"((?:[0-9a-f]{2} ?)+?)(?: {2,}.*)?")
MS_2022, MS_NEXT_DAY, AN_ID = 1_640_995_200_000, 1_641_081_600_000, 264_905_529_753_600_005

T = TypeName
ORDERS = TableSchema(
    7, "app", "orders", TableKind.SHARED,
    (
        Column("id", ColumnType(T.BIGINT)),
        Column("customer", ColumnType(T.TEXT)),
        Column("amount", ColumnType(T.DECIMAL, 12, 2)),
        Column("note", ColumnType(T.JSON)),
        Column("created_at", ColumnType(T.TIMESTAMP)),
    ),
    ("id",),
)  # fmt: skip
NOTES = TableSchema(8, "app", "notes", TableKind.USER, ORDERS.columns[:1], ("id",))
COMPOSITE = TableSchema(
    7, "app", "pairs", TableKind.SHARED,
    (Column("a", ColumnType(T.TEXT)), Column("b", ColumnType(T.DECIMAL, 12, 2))), ("a", "b"),
)  # fmt: skip


def key_of(schema: TableSchema, user: str | None, *values: Any) -> bytes:
    codec = row_codec(schema)
    return codec.key_of_row(codec.prefix(user), codec.struct(*values))


def order(customer: str = "ann", note: str | None = None) -> Any:
    return row_codec(ORDERS).struct(42, customer, Decimal("12.50"), note, datetime(2022, 1, 1, tzinfo=UTC))


def log_batch() -> bytes:
    classes = [
        MessageClass("app.orders", Op.INSERT, PayloadMode.FULL, None),
        MessageClass("app.notes", Op.DELETE, PayloadMode.KEY, "ann"),
    ]
    encoded = encode_log_batch(classes, [0, 1], [b'["42"]', b"[7]"], [b'{"id":"42"}', b'{"id":7}'], [1, 2])
    return stamp(encoded, first_offset=258, seq=5, ts_ms=MS_2022, first_id=AN_ID, bytes_before=77)


def sealed_part() -> bytes:
    file, row_keys = io.BytesIO(), pa.array([key_of(ORDERS, None, 42)], pa.binary())
    write_sealed(
        file, table_id=7, load_number=5, row_keys=row_keys, sst=io.BytesIO(b"SST."), sst_size=4,
        batches=[(3, 1, 2, b"log.")],
    )  # fmt: skip
    return file.getvalue()


A_KEY = key_of(ORDERS, None, 42)
SEALED = SealedPart(7, 5, 1, A_KEY, A_KEY, 20, 4, 24, 28, 2, (SealedBatch(3, 1, 16, 4, 2),), 196)
REMEMBERED = Remembered(bytes(range(16)), MS_NEXT_DAY, 258, 1)
SAID = Append(
    3, 0, MessageClass("app.orders", Op.INSERT, PayloadMode.FULL, None),
    [b'["42"]'], [b'{"_table":"app.orders","id":"42"}'], [0],
)  # fmt: skip
PAYLOADS = PayloadEncoder(ORDERS)
A_HISTORY = History("7f3a90c1d2e4b586")
ANN = User("ann", Role.SERVICE, None, MS_2022, MS_2022, 258)
AUDITED = AuditEntry("ann", Role.DBA, "DROP TOPIC", "app.events", "ok", "", None, MS_2022)
A_LOAD = LoadStamp(258, MS_2022, 1000)
A_JOB = LoadWriter("job:1", 3, 258, 1000, MS_2022, 3000)
INTENDED = LoadIntent("ab", 258, ("0.a.sst",), ("log.sst",), b"\x00\x07", b"\x00\x03", 5)
CHANGED = {
    key_of(ORDERS, None, 42): row_header(258, MS_2022) + row_codec(ORDERS).encode(order()),
    key_of(ORDERS, None, 43): None,
}
GIFT = '{"gift":true}'

WRITTEN = Version(MS_2022, "edge-1", 100 << 32 | 5)
WRITTEN_KEY, WRITTEN_BUCKET = "app.orders:42", bucket_of("app.orders:42")
GOLDEN = Event("golden-key", Version(MS_2022, "golden-node", 12345), "golden-value")
GOLDEN_TOMBSTONE = Event("test-key", Version(MS_2022, "node-1", 42), None)
A_NODE = Node("edge-1", (Epoch(100, 0), Epoch(600, 258)))
PUBLISHED = OutboxMark(258, 1, (260,))
HEARD = SeenEvents(((100 << 32 | 1, 100 << 32 | 5),))
SET_ASIDE = Quarantined("no table", False, "app.x:1", "edge-2", 7, 30, MS_2022)
ASKED = AskEvents("app.orders", [WRITTEN_KEY])
REPLIED = Entries([Listed(WRITTEN_BUCKET, [Entry(WRITTEN_KEY, *WRITTEN)], complete=True)])

EXAMPLES: dict[str, Callable[[], bytes]] = {
    "row-key": lambda: key_of(ORDERS, None, 42),
    "user-row-key": lambda: key_of(NOTES, "ann", -1),
    "composite-key": lambda: key_of(COMPOSITE, None, "a\x00b", Decimal("-0.01")),
    "log-key": lambda: keys.log_key(3, 1, 258),
    "group-key": lambda: keys.group_key(3, "billing", 1),
    "row": lambda: row_header(258, MS_2022) + row_codec(ORDERS).encode(order()),
    "loaded-row": lambda: loaded_row_header(5) + row_codec(ORDERS).encode(order()),
    "log-batch": log_batch,
    "sealed-part": sealed_part,
    "idempotency-key": lambda: idempotency_key("ann", "order-42"),
    "idempotency-record": lambda: encode_remembered(REMEMBERED),
    "dedup-key": lambda: dedup_key(SAID, 0),
    "dedup-entry": lambda: encode_seen(MS_2022),
    "expiry-key": lambda: keys.expiry_key(MS_NEXT_DAY, Family.KEYS, idempotency_key("ann", "order-42")),
    "table-key": lambda: catalog.table_key(258),
    "log-start-key": lambda: catalog.log_start_key(3, 1),
    "commit-record": lambda: encode_record(CommitMark(258, MS_2022, AN_ID)),
    "log-start-record": lambda: encode_record(LogStart(258, 77)),
    "audit-key": lambda: catalog.audit_key(258, 1),
    "load-key": lambda: catalog.load_key(7, 5),
    "load-record": lambda: encode_record(A_LOAD),
    "load-writer-key": lambda: catalog.load_writer_key(7, "job:1"),
    "load-writer-record": lambda: encode_record(A_JOB),
    "load-intent": lambda: encode_record(INTENDED),
    "change-key": lambda: keys.change_key(7, 259, 1),
    "change-record": lambda: encode_changes(MS_2022, 77, CHANGED),
    "change-start-key": lambda: catalog.change_start_key(7),
    "change-start-record": lambda: encode_record(ChangeStart(258, 77)),
    "history-record": lambda: encode_record(A_HISTORY),
    "user-record": lambda: encode_record(ANN),
    "audit-entry": lambda: encode_record(AUDITED),
    "payload-full": lambda: PAYLOADS.full(order(note=GIFT)),
    "payload-key": lambda: PAYLOADS.key(order()),
    "payload-diff": lambda: PAYLOADS.diff(order(note=GIFT), order("bob")),
    "message-key": lambda: PAYLOADS.message_key(order()),
    "event": lambda: encode_event(GOLDEN),
    "event-tombstone": lambda: encode_event(GOLDEN_TOMBSTONE),
    "version-key": lambda: version_key(7, WRITTEN_BUCKET, A_KEY),
    "version": lambda: encode_version(Kept(WRITTEN, False)),
    "bucket-key": lambda: bucket_key(7, WRITTEN_BUCKET),
    "bucket": lambda: encode_bucket(*entry_sum(WRITTEN_KEY, WRITTEN, False)),
    "node-record": lambda: encode_record(A_NODE),
    "outbox-record": lambda: encode_record(PUBLISHED),
    "seen-record": lambda: encode_record(HEARD),
    "quarantine-record": lambda: encode_record(SET_ASIDE),
    "sync-question": lambda: encode_sync(ASKED),
    "sync-reply": lambda: encode_sync(REPLIED),
}
READERS: dict[str, tuple[Callable[[bytes], Any], Any]] = {
    "row": (lambda data: (row_codec(ORDERS).decode(data), row_stamp(data)), (order(), (258, MS_2022))),
    "row-key": (lambda data: row_codec(ORDERS).decode_key(data, 4), (42,)),
    "user-row-key": (lambda data: (row_codec(NOTES).owner(data), row_codec(NOTES).decode_key(data, 9)), ("ann", (-1,))),
    "composite-key": (lambda data: row_codec(COMPOSITE).decode_key(data, 4), ("a\x00b", Decimal("-0.01"))),
    "log-key": (keys.log_offset, 258),
    "group-key": (keys.decode_group_key, (3, "billing", 1)),
    "log-batch": (lambda data: [m.offset for m in LogBatch(data).messages(3, 1)], [258, 259]),
    "sealed-part": (lambda data: read_sealed(io.BytesIO(data)), SEALED),
    "idempotency-record": (decode_remembered, REMEMBERED),
    "dedup-entry": (decode_seen, MS_2022),
    "expiry-key": (keys.decode_expiry_key, (MS_NEXT_DAY, "keys", b"iann\x00\x01order-42")),
    "log-start-key": (catalog.decode_log_start_key, (3, 1)),
    "commit-record": (lambda data: decode_record(CommitMark, data), CommitMark(258, MS_2022, AN_ID)),
    "log-start-record": (lambda data: decode_record(LogStart, data), LogStart(258, 77)),
    "audit-key": (catalog.decode_audit_key, (258, 1)),
    "loaded-row": (lambda data: (row_codec(ORDERS).decode(data), row_load(data)), (order(), 5)),
    "load-key": (catalog.decode_load_key, (7, 5)),
    "load-record": (lambda data: decode_record(LoadStamp, data), A_LOAD),
    "load-writer-record": (lambda data: decode_record(LoadWriter, data), A_JOB),
    "load-intent": (lambda data: decode_record(LoadIntent, data), INTENDED),
    "change-key": (keys.decode_change_key, (7, 259, 1)),
    "change-record": (lambda data: (decode_change_head(data), decode_changes(data)), ((MS_2022, 77), CHANGED)),
    "change-start-key": (catalog.decode_change_start_key, 7),
    "change-start-record": (lambda data: decode_record(ChangeStart, data), ChangeStart(258, 77)),
    "history-record": (lambda data: decode_record(History, data), A_HISTORY),
    "user-record": (lambda data: decode_record(User, data), ANN),
    "audit-entry": (lambda data: decode_record(AuditEntry, data), AUDITED),
    "event": (decode_event, GOLDEN),
    "event-tombstone": (decode_event, GOLDEN_TOMBSTONE),
    "version-key": (decode_version_key, (7, WRITTEN_BUCKET, A_KEY)),
    "version": (decode_version, Kept(WRITTEN, False)),
    "bucket-key": (decode_bucket_key, (7, WRITTEN_BUCKET)),
    "bucket": (decode_bucket, tuple(entry_sum(WRITTEN_KEY, WRITTEN, False))),
    "node-record": (lambda data: decode_record(Node, data), A_NODE),
    "outbox-record": (lambda data: decode_record(OutboxMark, data), PUBLISHED),
    "seen-record": (lambda data: decode_record(SeenEvents, data), HEARD),
    "quarantine-record": (lambda data: decode_record(Quarantined, data), SET_ASIDE),
    "sync-question": (decode_question, ASKED),
    "sync-reply": (decode_reply, REPLIED),
}


def hex_of(block: str) -> bytes:
    found = b""
    for line in block.splitlines():
        match = HEX_LINE.fullmatch(line)
        assert match, f"not bytes and a remark: {line!r}"
        found += bytes.fromhex(match[1])
    return found


def examples() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for page in sorted(PAGES.glob("*.md")):
        for language, name, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            assert name not in found, f"{name} is in two places"
            found[name] = hex_of(block) if language == "hex" else block.rstrip("\n").encode()
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_is_what_the_code_writes(name: str) -> None:
    assert examples()[name].hex(" ") == EXAMPLES[name]().hex(" ")


@pytest.mark.parametrize("name", READERS)
def test_the_example_is_what_the_code_reads(name: str) -> None:
    read, expected = READERS[name]
    assert read(examples()[name]) == expected


def test_every_example_on_a_page_is_checked() -> None:
    assert set(examples()) == set(EXAMPLES)


def test_the_documented_partitions() -> None:
    text = (PAGES / "keys.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| [^|]+ \| (?:`([0-9a-f ]+)`)? ?\| (\d+) \|$", text, re.MULTILINE)
    assert len(table) == 6
    for hashed, partition in table:
        assert partition_of(bytes.fromhex(hashed), 16) == int(partition), hashed


def test_the_group_states_on_their_page_decode() -> None:
    text = (PAGES / "group-state.md").read_text(encoding="utf-8")
    found = re.findall(r"^(0[12](?: [0-9a-f]{2})+)$", text, re.MULTILINE)
    assert [line[:2] for line in found] == ["02", "02", "02", "01"]
    for line in found:
        data = bytes.fromhex(line)
        state, updated_ms = group.decode_record(data)
        assert line[:2] == "01" or group.encode(state, updated_ms) == data


def test_the_index_links_every_page_and_every_link_leads_somewhere() -> None:
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([a-z-]+\.md)", index))
    assert linked == {page.name for page in PAGES.glob("*.md")} - {"README.md"}
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([A-Za-z-]+\.md)", page.read_text(encoding="utf-8")):
            assert (PAGES / target).is_file(), f"{page.name} links {target}"
