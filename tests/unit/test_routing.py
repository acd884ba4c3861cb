"""Routing: which messages a run of changes causes, in which partition, in which order."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.codec.log import MessageClass
from tablecast.codec.rows import RowCodec
from tablecast.core.payload import PayloadEncoder
from tablecast.core.routing import Append, compile_route, content_hash, partition_of, route_run
from tablecast.errors import ExpressionError, InvalidTopic, TablecastError
from tablecast.model.change import ChangeRun, Op
from tablecast.model.schema import Column, ColumnType, TableKind, TableSchema, TypeName
from tablecast.model.topic import PayloadMode, Route, Topic

T = TypeName


def table(kind: TableKind = TableKind.SHARED) -> TableSchema:
    columns = (
        Column("id", ColumnType(T.INT)),
        Column("customer", ColumnType(T.TEXT)),
        Column("amount", ColumnType(T.DECIMAL, 12, 2)),
        Column("ratio", ColumnType(T.DOUBLE)),
        Column("doc", ColumnType(T.JSON)),
    )
    return TableSchema(7, "app", "orders", kind, columns, ("id",))


ORDERS = table()
CODEC, ENCODER = RowCodec(ORDERS), PayloadEncoder(ORDERS)
ANY = (Op.INSERT, Op.UPDATE, Op.DELETE)


def order(key: int, customer: str | None = "ann", amount: str | None = "1.00", ratio: float | None = None) -> Any:
    return CODEC.struct(key, customer, None if amount is None else Decimal(amount), ratio, None)


def run(op: Op, rows: list[Any], before: list[Any] | None = None, user: str | None = None) -> ChangeRun:
    images: tuple[list[Any], list[Any]] = ([], rows) if op is Op.INSERT else (rows, []) if op is Op.DELETE else (
        before or rows, rows,
    )  # fmt: skip
    keys = [CODEC.key_of_row(CODEC.prefix(user), row) for row in rows]
    return ChangeRun(7, 1, op, keys, *images, [], user)


def routed(changes: ChangeRun, *routes: Route, partitions: int = 1) -> list[Append]:
    topics = [Topic(i, "app", f"events{i}", partitions, routes=(route,)) for i, route in enumerate(routes)]
    compiled = [compile_route(topic, topic.routes[0], ORDERS) for topic in topics]
    return route_run(changes, compiled, ENCODER, "app.orders")


def said(appends: list[Append]) -> list[bytes]:
    return [key for append in appends for key in append.keys]


# --- filters -------------------------------------------------------------------------------------------------


def test_only_true_matches() -> None:
    rows = [order(1, amount="200.00"), order(2, amount="5.00"), order(3, amount=None)]
    assert said(routed(run(Op.INSERT, rows), Route(7, ANY, "amount > 100"))) == [b"[1]"]
    assert said(routed(run(Op.INSERT, rows), Route(7, ANY, "NOT (amount > 100)"))) == [b"[2]"]
    assert said(routed(run(Op.INSERT, rows), Route(7, ANY, "amount IS NULL"))) == [b"[3]"]
    assert routed(run(Op.INSERT, rows), Route(7, ANY, "amount > 1000")) == []
    assert routed(run(Op.INSERT, rows), Route(7, ANY, "NULL")) == []


def test_an_update_is_judged_by_what_the_row_becomes() -> None:
    was, now = [order(1, amount="5.00")], [order(1, amount="200.00")]
    assert said(routed(run(Op.UPDATE, now, was), Route(7, ANY, "amount > 100"))) == [b"[1]"]
    assert said(routed(run(Op.UPDATE, was, now), Route(7, ANY, "amount > 100"))) == []


def test_a_delete_is_judged_by_and_tells_the_last_row() -> None:
    gone = run(Op.DELETE, [order(1, amount="200.00"), order(2, amount="5.00")])
    (append,) = routed(gone, Route(7, ANY, "amount > 100"))
    assert append.payloads == [
        b'{"_table":"app.orders","id":1,"customer":"ann","amount":"200.00","ratio":null,"doc":null}'
    ]
    assert append.message_class == MessageClass("app.orders", Op.DELETE, PayloadMode.FULL, None)


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_filter_that_fails_names_the_topic(partitions: int) -> None:
    route = Route(7, ANY, "CAST(ratio AS SMALLINT) = 1")
    with pytest.raises(ExpressionError, match=r"the filter of topic app\.events0 cannot be evaluated") as caught:
        routed(run(Op.INSERT, [order(1, ratio=1.0), order(2, ratio=1e9)]), route, partitions=partitions)
    assert caught.value.details == {"topic": "app.events0", "filter": "CAST(ratio AS SMALLINT) = 1"}


def test_a_partition_expression_that_fails_names_the_topic() -> None:
    route = Route(7, ANY, partition_by="CAST(ratio AS SMALLINT)")
    with pytest.raises(ExpressionError, match=r"the PARTITION BY of topic app\.events0 cannot be evaluated") as caught:
        routed(run(Op.INSERT, [order(1, ratio=1e9)]), route, partitions=4)
    assert caught.value.details == {"topic": "app.events0", "partition_by": "CAST(ratio AS SMALLINT)"}


@pytest.mark.parametrize("filter_text", ["amount >", "nothing > 1", "amount + 1", "customer > 5"])
def test_a_filter_that_does_not_compile_is_refused_not_skipped(filter_text: str) -> None:
    with pytest.raises(TablecastError):
        routed(run(Op.INSERT, [order(1)]), Route(7, ANY, filter_text))


# --- partitions ----------------------------------------------------------------------------------------------

# (expression, row, the bytes that are hashed, partition of 16). The numbers are a promise: a row's partition never
# changes between versions.
GOLDEN: list[tuple[str | None, Any, str, int]] = [
    (None, order(0), "80000000", 9),
    (None, order(1), "80000001", 6),
    (None, order(-1), "7fffffff", 9),
    (None, order(2**31 - 1), "ffffffff", 12),
    ("customer", order(1, "ann"), "616e6e0001", 6),
    ("customer", order(2, "ann"), "616e6e0001", 6),
    ("customer", order(1, ""), "0001", 7),
    ("customer", order(1, "a\x00b"), "6100ff620001", 0),
    ("customer", order(1, "é\U0001f600"), "c3a9f09f98800001", 14),
    ("customer", order(1, None), "", 2),
    ("amount", order(1, amount="1.50"), "8000000000000096", 7),
    ("amount", order(1, amount="-1.50"), "7fffffffffffff6a", 7),
    ("ratio", order(1, ratio=0.0), "8000000000000000", 6),
    ("ratio", order(1, ratio=-0.0), "8000000000000000", 6),
    ("id > 5", order(6), "01", 11),
]


@pytest.mark.parametrize(("by", "row", "hashed", "partition"), GOLDEN)
def test_golden_partitions(by: str | None, row: Any, hashed: str, partition: int) -> None:
    assert partition_of(bytes.fromhex(hashed), 16) == partition
    for op in Op:
        (append,) = routed(run(op, [row]), Route(7, ANY, partition_by=by), partitions=16)
        assert append.partition == partition


def test_the_hash_is_xxh3_of_64_bits() -> None:
    assert partition_of(b"", 2**64) == 0x2D06800538D394C2  # the published value for no bytes
    assert partition_of(bytes.fromhex("80000001"), 2**64) == 2722249072619141990
    assert content_hash(Op.INSERT, b"{}") == 1389868326933519382
    assert content_hash(Op.DELETE, b"{}") == 13426326566863873966


def test_null_is_a_value_of_its_own() -> None:
    rows = [order(i, None) for i in range(20)]
    (append,) = routed(run(Op.INSERT, rows), Route(7, ANY, partition_by="customer"), partitions=16)
    assert (append.partition, len(append.keys)) == (partition_of(b"", 16), 20)


def test_a_users_row_goes_by_user_and_key() -> None:
    of_ann = routed(run(Op.INSERT, [order(i) for i in range(50)], user="ann"), Route(7, ANY), partitions=16)
    of_bob = routed(run(Op.INSERT, [order(i) for i in range(50)], user="bob"), Route(7, ANY), partitions=16)
    where = [{key: append.partition for append in appends for key in append.keys} for appends in (of_ann, of_bob)]
    assert where[0] != where[1]
    assert {append.message_class.user_id for append in of_ann} == {"ann"}


def test_always_null_and_json_are_no_partition_keys() -> None:
    with pytest.raises(InvalidTopic, match="always NULL"):
        routed(run(Op.INSERT, [order(1)]), Route(7, ANY, partition_by="NULL"), partitions=4)
    with pytest.raises(InvalidTopic, match="JSON"):
        routed(run(Op.INSERT, [order(1)]), Route(7, ANY, partition_by="doc"), partitions=4)


rows = st.lists(
    st.builds(
        order,
        st.integers(0, 20),
        st.none() | st.sampled_from(["ann", "bob", "eve"]),
        st.sampled_from(["1.00", "200.00"]),
    ),
    min_size=1,
    max_size=30,
)


@given(rows, st.sampled_from([None, "customer", "id % 3"]), st.sampled_from([None, "amount > 100"]), st.integers(1, 8))
def test_every_match_is_said_once_and_in_order(
    changed: list[Any], by: str | None, filter_text: str | None, partitions: int
) -> None:
    """Updates of the same rows over and over: within a partition they keep the order of the run."""
    appends = routed(run(Op.UPDATE, changed), Route(7, ANY, filter_text, by), partitions=partitions)
    matching = [row for row in changed if filter_text is None or row.c2 > 100]
    numbered = [(ENCODER.message_key(row), ENCODER.full(row)) for row in matching]
    found = [pair for append in appends for pair in zip(append.keys, append.payloads, strict=True)]
    assert sorted(found) == sorted(numbered)
    assert len({append.partition for append in appends}) == len(appends)
    for append in appends:
        assert 0 <= append.partition < partitions
        mine = list(zip(append.keys, append.payloads, strict=True))
        assert mine == [pair for pair in numbered if pair in mine]
        assert append.hashes == [content_hash(Op.UPDATE, payload) for payload in append.payloads]


@given(rows, st.sampled_from([None, "customer"]), st.integers(2, 8))
def test_a_rows_partition_does_not_depend_on_its_company(changed: list[Any], by: str | None, partitions: int) -> None:
    together = routed(run(Op.INSERT, changed), Route(7, ANY, partition_by=by), partitions=partitions)
    for row in changed:
        (alone,) = routed(run(Op.INSERT, [row]), Route(7, ANY, partition_by=by), partitions=partitions)
        home = next(append for append in together if append.partition == alone.partition)
        assert alone.payloads[0] in home.payloads


# --- several sources -----------------------------------------------------------------------------------------


def test_sources_with_one_mode_share_the_payload_bytes() -> None:
    full, again, key = routed(
        run(Op.INSERT, [order(1), order(2)]),
        Route(7, ANY),
        Route(7, ANY, "id = 2"),
        Route(7, ANY, payload=PayloadMode.KEY),
    )
    assert again.payloads[0] is full.payloads[1]
    assert key.keys[0] is full.keys[0]
    assert key.payloads == [b'{"_table":"app.orders","id":1}', b'{"_table":"app.orders","id":2}']
    assert [append.topic_id for append in (full, again, key)] == [0, 1, 2]


def test_each_source_says_it_in_its_mode() -> None:
    changes = run(Op.UPDATE, [order(1, "bob")], [order(1, "ann")])
    modes = (PayloadMode.FULL, PayloadMode.KEY, PayloadMode.DIFF)
    appends = routed(changes, *(Route(7, ANY, payload=mode) for mode in modes))
    assert [append.message_class.payload_mode for append in appends] == list(modes)
    assert appends[2].payloads == [b'{"_table":"app.orders","id":1,"customer":{"old":"ann","new":"bob"}}']


def test_without_sources_nothing_is_said() -> None:
    assert route_run(run(Op.INSERT, [order(1)]), [], ENCODER, "app.orders") == []
