"""Many requests as one command: it leaves the bytes that each of them would have left, or nothing at all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_commit import CODEC, ORDERS, PREFIX, Writer

from tablecast.engine.decision import StalePlan
from tablecast.engine.idempotency import Once
from tablecast.engine.once_each import FINGERPRINT_BYTES, OnceEach
from tablecast.engine.rows import InsertRows
from tablecast.errors import InvalidRequest
from tablecast.storage.base import Family

Asked = tuple[str, int]  # an idempotency key, and the row it inserts


def fingerprint(asked: Asked) -> bytes:
    return repr(asked).encode().ljust(FINGERPRINT_BYTES)[:FINGERPRINT_BYTES]


def insert(*ids: int) -> InsertRows:
    rows = [CODEC.struct(i) for i in ids]
    bodies = [CODEC.encode(row) for row in rows]
    return InsertRows(ORDERS.table_id, ORDERS.version, None, CODEC.keys_of_rows(PREFIX, rows), rows, bodies)


def together(asked: Sequence[Asked]) -> OnceEach:
    return OnceEach("ann", [key for key, _ in asked], [fingerprint(a) for a in asked], insert(*(i for _, i in asked)))


def apart(asked: Sequence[Asked]) -> list[Once]:
    return [Once("ann", a[0], fingerprint(a), insert(a[1]), ORDERS.table_id) for a in asked]


def stored(writer: Writer) -> list[tuple[Family, bytes, bytes]]:
    return [(family, key, value) for family in Family for key, value in writer.store.scan(family)]


requests = st.lists(
    st.tuples(st.text(min_size=1, max_size=9), st.integers(-(2**31), 2**31 - 1)),
    min_size=1,
    unique_by=(lambda a: a[0], lambda a: a[1]),
)


@given(requests)
def test_it_leaves_what_each_of_them_leaves(asked: list[Asked]) -> None:
    one, each = Writer(), Writer()
    one.commit(together(asked))
    each.commit(*apart(asked))
    assert stored(one) == stored(each)


@given(requests.filter(lambda asked: len(asked) > 1))
def test_a_repeat_among_them_undoes_it_and_nothing_has_happened(asked: list[Asked]) -> None:
    writer = Writer()
    writer.commit(*apart(asked[:1]))
    before = stored(writer)
    with pytest.raises(StalePlan, match="repeat"):
        writer.commit(together(asked))
    assert stored(writer) == before


def test_a_row_that_is_there_undoes_it() -> None:
    writer = Writer()
    writer.commit(insert(2))
    with pytest.raises(StalePlan, match="row"):
        writer.commit(together([("a", 1), ("b", 2)]))


@pytest.mark.parametrize("asked", [[("a", 1), ("a", 2)], [("a", 1), ("b", 1)]])
def test_two_of_them_that_are_in_each_others_way_undo_it(asked: list[Asked]) -> None:
    with pytest.raises(StalePlan):
        Writer().commit(together(asked))


@pytest.mark.parametrize("key", ["", "x" * 256, "\ud800"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match="idempotency key"):
        Writer().commit(together([("a", 1), (key, 2)]))
