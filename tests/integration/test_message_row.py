"""`message.row`: the payload with the Python values of its table, also of messages that are older than the table."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from faces import FACES, face

from tablecast import EARLIEST
from tablecast.client import message_tables
from tablecast.errors import InvalidRequest, PayloadMismatch, UnknownTable
from tablecast.model.message import Message

SETUP = """
CREATE TABLE t (id BIGINT PRIMARY KEY, price DECIMAL(12,2), at TIMESTAMP, photo BYTES, u UUID, note JSON, name TEXT);
CREATE TOPIC whole; ALTER TOPIC whole ADD SOURCE t ON ANY;
CREATE TOPIC keys; ALTER TOPIC keys ADD SOURCE t ON ANY WITH (payload = 'key');
CREATE TOPIC changed; ALTER TOPIC changed ADD SOURCE t ON ANY WITH (payload = 'diff');
"""
ROW = {
    "id": 2**60,
    "price": Decimal("1.50"),
    "at": datetime(2024, 2, 29, 12, tzinfo=UTC),
    "photo": b"hi",
    "u": UUID(int=7),
    "note": {"old": 1, "new": ["x"]},
    "name": None,
}


def rows(database: Any, topic: str, group: str | None = None) -> list[dict[str, Any]]:
    return [message.row for message in database.consume(topic, start=EARLIEST, group=group).messages]


@pytest.mark.parametrize("kind", FACES)
def test_a_row_has_the_values_that_a_query_shows(kind: str) -> None:
    with face(kind) as database:
        database.execute(SETUP)
        database.insert("t", [ROW])
        assert database.query("SELECT * FROM t").dicts() == [ROW]
        for group in (None, "g"):
            assert rows(database, "whole", group) == [ROW]
            assert rows(database, "keys", group) == [{"id": 2**60}]
        assert rows(database, "changed") == [ROW]


@pytest.mark.parametrize("kind", FACES)
def test_a_diff_has_both_values_of_what_changed(kind: str) -> None:
    with face(kind) as database:
        database.execute(SETUP)
        database.insert("t", [ROW])
        database.execute("UPDATE t SET price = 2, photo = NULL, note = '[1]', name = 'x'")
        database.execute("DELETE FROM t")
        _, updated, deleted = rows(database, "changed")
        assert updated == {
            "id": 2**60,
            "price": {"old": Decimal("1.50"), "new": Decimal("2.00")},
            "photo": {"old": b"hi", "new": None},
            "note": {"old": ROW["note"], "new": [1]},
            "name": {"old": None, "new": "x"},
        }
        assert deleted["price"] == Decimal("2.00")


@pytest.mark.parametrize("kind", FACES)
@pytest.mark.parametrize("topic", ["whole", "changed"])
def test_a_column_that_was_added_is_in_the_messages_since(kind: str, topic: str) -> None:
    with face(kind) as database:
        database.execute(SETUP)
        database.insert("t", [ROW])
        assert rows(database, topic) == [ROW]
        database.execute("ALTER TABLE t ADD COLUMN day DATE")
        database.execute("UPDATE t SET day = '2024-02-29'")
        database.execute("UPDATE t SET price = 3")  # a diff without the new column, behind one that has it
        before, after, _ = rows(database, topic)
        assert before == ROW
        day = database.query("SELECT day FROM t").scalar()
        assert after["day"] == (day if topic == "whole" else {"old": None, "new": day})


@pytest.mark.parametrize("kind", FACES)
def test_of_a_table_that_is_gone_the_value_is_left(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_tables, "KNOWN_SECONDS", 0.0)
    with face(kind) as database:
        database.execute(SETUP)
        database.insert("t", [ROW])
        database.execute("DROP TABLE t CASCADE")
        for group in (None, "g"):
            [message] = database.consume("whole", start=EARLIEST, group=group).messages
            with pytest.raises(UnknownTable, match=r"message\.value has the payload") as caught:
                message.row  # noqa: B018
            assert caught.value.details == {"table": "default.t"}
            assert message.value["price"] == "1.50"
        database.execute("CREATE TABLE t (id UUID PRIMARY KEY)")
        [message] = database.consume("whole", start=EARLIEST).messages
        with pytest.raises(PayloadMismatch, match=r"default\.t as it is now"):
            message.row  # noqa: B018


def test_where_it_was_read_is_no_part_of_a_message() -> None:
    found: list[Message] = []
    for kind in ("embedded", "remote"):
        with face(kind) as database:
            database.execute(SETUP)
            database.insert("t", [{"id": 1}])
            [message] = database.consume("keys", start=EARLIEST).messages
            found.append(Message(*[getattr(message, name) for name in message.__struct_fields__ if name != "reader"]))
            assert (found[-1], hash(found[-1])) == (message, hash(message))
    with pytest.raises(InvalidRequest, match="consume"):
        found[0].row  # noqa: B018
