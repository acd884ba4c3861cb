"""What a parameter is when it arrives: the value that was sent, of the type that it had."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.client.values import from_extension, pack, pack_rows, unpack
from tablecast.codec.packed_rows import PackedRows
from tablecast.errors import InvalidRequest, TypeMismatch

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.datetimes(timezones=st.just(timezone(timedelta(hours=-7, minutes=30))))
    | st.dates()
    | st.times()
    | st.uuids()
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


def exact(value: Any) -> Any:
    """Equality that tells 1 from True and from Decimal(1), 1.5 from 1.50, and a zone from another."""
    if isinstance(value, list):
        return [exact(inner) for inner in value]
    if isinstance(value, dict):
        return {key: exact(inner) for key, inner in value.items()}
    shown = value.isoformat() if isinstance(value, datetime) else str(value)
    return type(value), shown, value


@given(st.lists(VALUES))
def test_values_survive_exactly(values: list[Any]) -> None:
    assert exact(unpack(pack(values), list)) == exact(values)


@given(st.lists(st.lists(VALUES) | st.dictionaries(st.text(), VALUES)))
def test_rows_are_packed_like_any_values(rows: list[Any]) -> None:
    assert exact(PackedRows(*pack_rows(rows), from_extension).plain()) == exact(rows)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (Decimal("1.50"), 1),
        (datetime(2026, 1, 31, 12), 2),
        (date(2026, 1, 31), 3),
        (time(12, 30), 4),
        (UUID(int=7), 5),
        (2**64, 6),
    ],
)
def test_the_codes_are_those_that_are_documented(value: Any, code: int) -> None:
    assert msgspec.msgpack.decode(pack(value)).code == code


def test_tuples_are_lists_and_mappings_are_maps() -> None:
    assert unpack(pack({"row": (1, (2, 3))}), dict) == {"row": [1, [2, 3]]}


@pytest.mark.parametrize(
    "value", [object(), 10**5000, float, [1, {2: object()}]], ids=["object", "huge", "type", "inside"]
)
def test_what_has_no_form_is_refused_before_it_is_sent(value: Any) -> None:
    with pytest.raises(TypeMismatch, match="cannot be sent"):
        pack(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeMismatch):
        pack(endless)


@pytest.mark.parametrize(
    ("code", "data"),
    [(9, b"x"), (1, b"one"), (2, b"noon"), (3, b"1"), (4, b"x"), (5, b"short"), (6, b"1x"), (1, b"\xff")],
)
def test_an_extension_that_means_nothing_is_an_error_that_names_it(code: int, data: bytes) -> None:
    with pytest.raises(InvalidRequest, match=f"extension {code}"):
        from_extension(code, memoryview(data))
