"""What each column type takes, what it makes of it, and how it says no."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.codec.values import MAX_JSON_DEPTH, coercion
from tablecast.errors import TypeMismatch
from tablecast.model.schema import ColumnType, TypeName


def column(name: TypeName, precision: int = 0, scale: int = 0) -> Callable[[Any], Any]:
    return coercion(ColumnType(name, precision, scale), "col")


BOOLEAN, SMALLINT, INT = column(TypeName.BOOLEAN), column(TypeName.SMALLINT), column(TypeName.INT)
BIGINT, FLOAT, DOUBLE = column(TypeName.BIGINT), column(TypeName.FLOAT), column(TypeName.DOUBLE)
MONEY, WIDE, WHOLE = (column(TypeName.DECIMAL, *p) for p in ((5, 2), (38, 4), (38, 0)))
TEXT, BYTES, JSON = column(TypeName.TEXT), column(TypeName.BYTES), column(TypeName.JSON)
TIMESTAMP, DATE = column(TypeName.TIMESTAMP), column(TypeName.DATE)
TIME, UUIDS = column(TypeName.TIME), column(TypeName.UUID)

NAN, INFINITY = float("nan"), float("inf")
UTC_PLUS_2 = timezone(timedelta(hours=2))


class Number(enum.IntEnum):
    FIVE = 5


class Word(str):
    pass


class Day(date):
    pass


class Moment(datetime):
    pass


class Hour(time):
    pass


class Name(UUID):
    pass


class NoZone(tzinfo):
    """A zone that does not know its offset: Python calls such a datetime naive."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None


ACCEPTED: list[tuple[Callable[[Any], Any], Any, Any]] = [
    (BOOLEAN, True, True),
    (BOOLEAN, "False", False),
    (BOOLEAN, " t ", True),
    (SMALLINT, -(2**15), -(2**15)),
    (SMALLINT, "32767", 32767),
    (INT, 3.0, 3),
    (INT, Decimal("3.00"), 3),
    (INT, " -12 ", -12),
    (INT, Number.FIVE, 5),
    (BIGINT, 2**63 - 1, 2**63 - 1),
    (BIGINT, Decimal(-(2**63)), -(2**63)),
    (FLOAT, 0.1, 0.10000000149011612),
    (FLOAT, "1e3", 1000.0),
    (DOUBLE, 1, 1.0),
    (DOUBLE, Decimal("0.1"), 0.1),
    (DOUBLE, "1e308", 1e308),
    (MONEY, 1, Decimal("1.00")),
    (MONEY, 0.1, Decimal("0.10")),
    (MONEY, "1.005", Decimal("1.01")),
    (MONEY, "-1.005", Decimal("-1.01")),
    (MONEY, "1e2", Decimal("100.00")),
    (MONEY, np.float64(0.1), Decimal("0.10")),
    (MONEY, "999.994", Decimal("999.99")),
    (WHOLE, 10**38 - 1, Decimal(10**38 - 1)),
    (WIDE, "-9999999999999999999999999999999999.9999", Decimal("-9999999999999999999999999999999999.9999")),
    (TEXT, "", ""),
    (TEXT, "a\x00\U0001f600", "a\x00\U0001f600"),
    (TEXT, Word("x"), "x"),
    (BYTES, bytearray(b"\x00\xff"), b"\x00\xff"),
    (BYTES, memoryview(b"abc")[::2], b"ac"),
    (TIMESTAMP, datetime(2022, 1, 1, 2), datetime(2022, 1, 1, 2, tzinfo=UTC)),
    (TIMESTAMP, datetime(2022, 1, 1, 2, tzinfo=UTC_PLUS_2), datetime(2022, 1, 1, tzinfo=UTC)),
    (TIMESTAMP, datetime(2022, 1, 1, 2, tzinfo=NoZone()), datetime(2022, 1, 1, 2, tzinfo=UTC)),
    (TIMESTAMP, date(2022, 1, 1), datetime(2022, 1, 1, tzinfo=UTC)),
    (TIMESTAMP, "2022-01-01T02:00:00+02:00", datetime(2022, 1, 1, tzinfo=UTC)),
    (TIMESTAMP, " 2022-01-01 00:00:00.000001Z ", datetime(2022, 1, 1, 0, 0, 0, 1, UTC)),
    (TIMESTAMP, Moment(2022, 1, 1, tzinfo=UTC), datetime(2022, 1, 1, tzinfo=UTC)),
    (DATE, "2022-01-01", date(2022, 1, 1)),
    (DATE, Day(2022, 1, 1), date(2022, 1, 1)),
    (TIME, "12:30", time(12, 30)),
    (TIME, Hour(1, 2), time(1, 2)),
    (TIME, time(1, 2, fold=1), time(1, 2)),
    (UUIDS, "00000000000000000000000000000001", UUID(int=1)),
    (UUIDS, "{00000000-0000-0000-0000-000000000001}", UUID(int=1)),
    (UUIDS, bytes(15) + b"\x01", UUID(int=1)),
    (UUIDS, Name(int=1), UUID(int=1)),
]


@pytest.mark.parametrize(
    ("coerce", "given", "held"), ACCEPTED, ids=[f"{i}-{type(g).__name__}" for i, (_, g, _) in enumerate(ACCEPTED)]
)
def test_accepted(coerce: Callable[[Any], Any], given: Any, held: Any) -> None:
    result = coerce(given)
    assert result == held
    assert type(result) is type(held)  # a subclass would not survive storage
    assert str(result) == str(held)  # nor would another scale, sign of zero, or zone


REFUSED: list[tuple[Callable[[Any], Any], Any, str]] = [
    (BOOLEAN, 1, "true or false"),
    (BOOLEAN, "yes", "true or false"),
    (SMALLINT, True, "a boolean is not a number"),
    (SMALLINT, 2**15, "out of range -32768..32767"),
    (SMALLINT, -(2**15) - 1, "out of range"),
    (INT, 2**31, "out of range"),
    (BIGINT, 2**63, "out of range"),
    (BIGINT, 1e30, "out of range"),
    (BIGINT, 10**5000, "out of range"),
    (BIGINT, Decimal("1e1000000"), "out of range"),
    (BIGINT, "9" * 5000, "not a whole number"),
    (INT, 3.5, "not a whole number"),
    (INT, Decimal("0.1"), "not a whole number"),
    (INT, NAN, "out of range"),
    (INT, INFINITY, "out of range"),
    (INT, Decimal("sNaN"), "out of range"),
    (INT, "3.5", "not a whole number"),
    (INT, "١٢", "not a whole number"),
    (INT, "", "not a whole number"),
    (INT, "3000000000", "out of range"),
    (INT, b"1", ""),
    (FLOAT, 1e39, "not a number in range"),
    (FLOAT, True, ""),
    (DOUBLE, NAN, "NaN and infinity"),
    (DOUBLE, "inf", "NaN and infinity"),
    (DOUBLE, 10**400, "not a number in range"),
    (DOUBLE, "1.5 m", "not a number in range"),
    (DOUBLE, "١٢", "not a number in range"),
    (DOUBLE, Decimal("sNaN"), "not a number in range"),
    (MONEY, 1000, "more than 5 digits"),
    (MONEY, "999.995", "more than 5 digits"),
    (MONEY, False, ""),
    (MONEY, NAN, "NaN and infinity"),
    (MONEY, INFINITY, "NaN and infinity"),
    (MONEY, Decimal("NaN"), "NaN and infinity"),
    (MONEY, Decimal("sNaN"), "NaN and infinity"),
    (MONEY, "1e1000000", "not a decimal number in range"),
    (MONEY, "12,5", "not a decimal number"),
    (MONEY, "١٢", "not a decimal number"),
    (WHOLE, 10**38, "more than 38 digits"),
    (TEXT, 5, "expected a string"),
    (TEXT, b"x", "expected a string"),
    (TEXT, "a\ud800", "lone surrogate"),
    (BYTES, "text", "expected bytes"),
    (TIMESTAMP, "yesterday", "ISO 8601"),
    (TIMESTAMP, 5, "expected a datetime"),
    (TIMESTAMP, datetime.min.replace(tzinfo=UTC_PLUS_2), "out of range in UTC"),
    (DATE, datetime(2022, 1, 1), "expected a date"),
    (DATE, "2022-02-30", "ISO 8601 date"),
    (TIME, "12:00Z", "without a zone"),
    (TIME, time(12, tzinfo=UTC), "without a zone"),
    (TIME, "25:00", "ISO 8601 time"),
    (UUIDS, "abc", "expected a UUID"),
    (UUIDS, b"short", "expected a UUID"),
    (UUIDS, "0000000_000000000000000000000000", "expected a UUID"),
    (UUIDS, 1, "expected a UUID"),
]


@pytest.mark.parametrize(("coerce", "given", "why"), REFUSED, ids=[f"{i}-{w}" for i, (_, _, w) in enumerate(REFUSED)])
def test_refused_with_the_column_the_type_and_the_value(coerce: Callable[[Any], Any], given: Any, why: str) -> None:
    with pytest.raises(TypeMismatch) as caught:
        coerce(given)
    message = caught.value.message
    assert message.startswith("column 'col' is ")
    assert why in message
    assert f"({type(given).__name__})" in message
    assert caught.value.details["column"] == "col"
    assert caught.value.details["got"] == type(given).__name__
    message.encode()  # what is shown of a wrong value is printable
    assert len(message) < 300


@pytest.mark.parametrize("value", [10**5000, "x" * 10**6], ids=["huge number", "huge text"])
def test_an_error_shows_only_the_beginning_of_a_value(value: Any) -> None:
    with pytest.raises(TypeMismatch) as caught:
        DATE(value)
    assert len(caught.value.message) < 200


def test_a_value_without_a_repr_is_refused_all_the_same() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(TypeMismatch, match="cannot be shown"):
        TEXT(Silent())


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**33), max_value=10**33))
def test_a_decimal_is_rounded_once_and_only_to_its_scale(number: Decimal) -> None:
    with localcontext() as context:
        context.prec = 2  # the thread's own context must not matter
        held = WIDE(number)
    with localcontext() as context:
        context.prec = 200
        assert abs(held - number) <= Decimal("0.00005")
    assert held.as_tuple().exponent == -4
    assert WIDE(held) == held


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_double_is_exact_and_float_is_the_nearest_of_32_bits(number: float) -> None:
    assert DOUBLE(number) == number
    if abs(number) <= float(np.finfo(np.float32).max):
        assert FLOAT(number) == float(np.float32(number))


def test_there_is_no_negative_zero_decimal() -> None:
    assert str(MONEY("-0.001")) == "0.00"


# --- JSON ----------------------------------------------------------------------------------------------------


@dataclass
class Point:
    x: float
    y: float


ACCEPTED_JSON: list[tuple[Any, str]] = [
    ('{"b": 1, "a": [1.50, 1e5, null]}', '{"b":1,"a":[1.50,1e5,null]}'),  # order and numbers as given
    ('{"a":1,"a":2}', '{"a":1,"a":2}'),  # JSON allows it; so do the json types of other databases
    ('"\\ud83d\\ude00"', '"\\ud83d\\ude00"'),
    ('" \\u0000\x7f\u2028 "', '" \\u0000\x7f\u2028 "'),
    ("123456789012345678901234567890", "123456789012345678901234567890"),
    ("-0", "-0"),
    (" null ", "null"),
    ({"a": (1, None), 2: "é"}, '{"a":[1,null],"2":"é"}'),
    ([True, 1.5, Decimal("1.50"), b"x"], '[true,1.5,"1.50","eA=="]'),
    (Point(1.0, 2.0), '{"x":1.0,"y":2.0}'),
    (5, "5"),
]


@pytest.mark.parametrize(("given", "text"), ACCEPTED_JSON, ids=[repr(g)[:40] for g, _ in ACCEPTED_JSON])
def test_json_is_kept_compact_and_as_given(given: Any, text: str) -> None:
    assert JSON(given) == text


REFUSED_JSON: list[Any] = [
    "", " ", "nul", "truex", "NaN", "Infinity", "-Infinity", "+1", "01", "1.", ".5", "1e", "-", "0x10", "1 2",
    "'a'", '"abc', '"\\x"', '"\\u12"', '"\\ud800"', '"\\udc00"', '"\\ud800\\u0041"', '"a\nb"', '"a\x01b"', "\ufeff1",
    "[1,]", "[1 2]", "{1:2}", '{"a" 1}', '{"a":1,}', "/*c*/1", "1\x00", "\ud800", '"\ud800"',
    "1e400", "-1e400", "9" * 400 + ".0", "9" * 5000, "[" * 100_000 + "]" * 100_000,
    "[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1),
    NAN, [INFINITY], {"a": [None, {"b": -INFINITY}]}, Point(NAN, None), object(), {(1, 2): 3}, 10**5000, "a\ud800",
    {"a": "\ud800"}, msgspec.Raw(b"garbage"), [msgspec.Raw(b"1,")],
]  # fmt: skip


@pytest.mark.parametrize("given", REFUSED_JSON, ids=[str(i) for i in range(len(REFUSED_JSON))])
def test_what_is_not_json_for_every_reader_is_refused(given: Any) -> None:
    with pytest.raises(TypeMismatch, match="column 'col' is JSON and cannot hold"):
        JSON(given)


def test_an_endless_structure_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeMismatch, match="column 'col' is JSON"):
        JSON(loop)


def test_depth_counts_brackets_outside_of_strings_only() -> None:
    wide = json.dumps([{"a": '[[[{{{\\"' * 20}] * 200)
    assert json.loads(JSON(wide)) == json.loads(wide)
    deep = "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH
    assert JSON(deep) == deep
    with pytest.raises(TypeMismatch, match=f"more than {MAX_JSON_DEPTH} deep"):
        JSON(f"[{deep}]")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"])),  # noqa: E501
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_values.filter(lambda v: v is not None))
def test_any_json_value_survives_as_a_value_and_as_text(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=2)):
        assert json.loads(JSON(text)) == value
        assert JSON(JSON(text)) == JSON(text)
    if not isinstance(value, str):  # a Python string is taken for JSON text
        assert json.loads(JSON(value)) == value


@given(st.text(alphabet='{}[]",:\\u01de.+-tfn \x00a', max_size=12))
def test_json_is_never_accepted_that_a_strict_parser_refuses(text: str) -> None:
    try:
        held = JSON(text)
    except TypeMismatch:
        return
    assert msgspec.json.decode(held) == json.loads(text, parse_constant=lambda word: pytest.fail(word))
