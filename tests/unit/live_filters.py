"""Random filters over a table with every type, for whoever holds live queries against SELECT.

Values come from small pools full of neighbours (1, 1.0, 1.00, TRUE; 0.0, -0.0; one instant in two zones), so that `=` is
often true, and often between values of different types.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import strategies as st

COLUMNS = {
    "id": "INT",
    "b": "BOOLEAN",
    "s": "SMALLINT",
    "i": "INT",
    "l": "BIGINT",
    "f": "FLOAT",
    "d": "DOUBLE",
    "m": "DECIMAL(6,2)",
    "w": "DECIMAL(38,10)",
    "t": "TEXT",
    "y": "BYTES",
    "ts": "TIMESTAMP",
    "da": "DATE",
    "ti": "TIME",
    "u": "UUID",
}
CREATE = f"CREATE TABLE app.every ({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())}, PRIMARY KEY (id))"

NUMBERS = [0, 1, -1, 2, 300]
BIG = [2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, 0.5, 0.1, 2.0]
MOMENTS = [dt.datetime(2024, 2, 29, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, 12, 30, 0, 5, tzinfo=dt.UTC)]
UUIDS = [UUID(int=1), UUID(int=2**127)]
TEXTS = ["", "a", "A", "a ", "é", "e\u0301", "1", "it's"]

STORED: dict[str, list[Any]] = {
    "b": [True, False],
    "s": NUMBERS,
    "i": [*NUMBERS, 2**31 - 1],
    "l": [*NUMBERS, *BIG],
    "f": [0.0, -0.0, 1.0, 0.5, 2.0, 0.10000000149011612],
    "d": [*FLOATS, float(2**53)],
    "m": [Decimal("0.00"), Decimal("1.00"), Decimal("0.10"), Decimal("-1.00"), Decimal("2.50")],
    "w": [Decimal("0E-10"), Decimal("1.0000000000"), Decimal("0.1000000000"), Decimal("9007199254740993.0000000000")],
    "t": TEXTS,
    "y": [b"", b"a", b"\0", b"\xff"],
    "ts": MOMENTS,
    "da": [moment.date() for moment in MOMENTS[:1]] + [dt.date(1970, 1, 1)],
    "ti": [moment.time() for moment in MOMENTS],
    "u": UUIDS,
}
ANY_NUMBER = [
    *NUMBERS,
    *BIG,
    *FLOATS,
    Decimal("1"),
    Decimal("1.00"),
    Decimal("0.1"),
    Decimal("2.5"),
    float(2**53),
    float("inf"),
]
CET = dt.timezone(dt.timedelta(hours=1))
ANY_MOMENT = [*MOMENTS, MOMENTS[0].replace(tzinfo=None), MOMENTS[1].astimezone(CET), dt.date(2024, 2, 29)]
COMPARED: dict[str, list[Any]] = {  # what a column may be compared with, besides the values it holds
    **dict.fromkeys(("s", "i", "l", "f", "d", "m", "w"), ANY_NUMBER),
    "ts": [*ANY_MOMENT, "2024-02-29 00:00:00", "2024-02-29"],
    "da": [*ANY_MOMENT, "2024-02-29"],
    "ti": ["12:30:00.000005"],
    "u": [str(UUIDS[0])],
}

SIGNS = ("=", "<>", "<", ">=", "IS NOT DISTINCT FROM")
Row = tuple[Any, ...]
cells = {name: st.one_of(st.sampled_from(values), st.none()) for name, values in STORED.items()}


def rows(first_id: int) -> st.SearchStrategy[Row]:
    return st.tuples(st.just(first_id), *cells.values())


class Filter(NamedTuple):
    """A condition with its parameters, in the order of the text."""

    sql: str
    params: tuple[Any, ...]


def joined(template: str, *parts: Filter) -> Filter:
    return Filter(template.format(*(part.sql for part in parts)), tuple(p for part in parts for p in part.params))


def literal(value: Any) -> str | None:
    """The value as SQL writes it; None where it has no such form."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int() | Decimal():
            return str(value) if "E" not in str(value) else None
        case float():
            return None if value in (float("inf"), -0.0) else f"{value!r}e0"
        case str():
            return "'" + value.replace("'", "''") + "'"
    return None


@st.composite
def operands(draw: st.DrawFn, column: str) -> Filter:
    value = draw(st.one_of(st.sampled_from(STORED[column]), st.sampled_from(COMPARED.get(column, [None])), st.none()))
    written = literal(value)
    if written is not None and draw(st.booleans()):
        return Filter(written, ())
    return Filter("?", (value,))


@st.composite
def comparisons(draw: st.DrawFn, signs: Sequence[str] = SIGNS) -> Filter:
    column = draw(st.sampled_from(list(STORED)))
    sides = [Filter(column, ()), draw(operands(column))]
    if draw(st.booleans()):
        sides.reverse()
    return joined(f"{{}} {draw(st.sampled_from(signs))} {{}}", *sides)


@st.composite
def memberships(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(list(STORED)))
    items = draw(st.lists(operands(column), min_size=1, max_size=3))
    return joined(f"{column} IN ({', '.join('{}' for _ in items)})", *items)


nulls = st.sampled_from(list(STORED)).map(lambda column: Filter(f"{column} IS NULL", ()))
leaves = st.one_of(comparisons(), comparisons(), comparisons(), memberships(), nulls)


def _combined(inner: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    return st.one_of(
        st.tuples(inner, inner).map(lambda pair: joined("({}) AND ({})", *pair)),
        st.tuples(inner, inner).map(lambda pair: joined("({}) AND ({})", *pair)),
        st.tuples(inner, inner).map(lambda pair: joined("({}) OR ({})", *pair)),
        inner.map(lambda part: joined("NOT ({})", part)),
    )


anything = st.recursive(leaves, _combined, max_leaves=4)
equalities = comparisons(("=",))
demanding = st.one_of(
    equalities,
    st.tuples(equalities, equalities).map(lambda pair: joined("{} AND {}", *pair)),
    st.tuples(equalities, anything).map(lambda pair: joined("{} AND ({})", *pair)),
    st.tuples(anything, equalities).map(lambda pair: joined("({}) AND {}", *pair)),
)
filters = st.one_of(anything, demanding)
