"""Access paths. The main test is differential: a path over a sorted list, then DuckDB unless the path is exact, must
give what DuckDB gives over the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from tablecast.codec.arrow_types import arrow_schema
from tablecast.codec.result import Result
from tablecast.errors import TablecastError
from tablecast.model.schema import Column, ColumnType, TableKind, TableSchema, TypeName
from tablecast.sql.access import AccessKind, AccessPath, AccessPlan, access_path, plan_access
from tablecast.sql.access_values import UNUSABLE, reader
from tablecast.sql.query import QueryEngine

Row = tuple[Any, ...]


def table(*key: ColumnType, name: str = "t") -> TableSchema:
    """Key columns k0, k1, … and a nullable INT column v."""
    columns = [Column(f"k{i}", kind, not_null=True) for i, kind in enumerate(key)]
    columns.append(Column("v", ColumnType(TypeName.INT)))
    names = tuple(column.name for column in columns[:-1])
    return TableSchema(1, "app", name, TableKind.SHARED, tuple(columns), names)


BIGINT = ColumnType(TypeName.BIGINT)
TEXT = ColumnType(TypeName.TEXT)
ONE = table(BIGINT)
TWO = table(BIGINT, TEXT)


def tree(sql: str) -> Any:
    return sqlglot.parse_one(sql + " ", dialect="duckdb")  # sqlglot misreads a text that has $1 and ends in ''


def path(sql: str, schema: TableSchema = ONE, params: Sequence[Any] = ()) -> AccessPath:
    return access_path(tree(sql), schema, params)


# --- what becomes of which WHERE -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ("k0 = 5", [5]),
        ("5 = k0", [5]),
        ("k0 = -5", [-5]),
        ("t.k0 = 5", [5]),
        ("app.t.k0 = 5", [5]),
        ("(k0 = 5)", [5]),
        ("K0 = 5", [5]),
        ("k0 = '5'", [5]),
        ("k0 IN (3, 1, 2, 1)", [1, 2, 3]),
        ("k0 IN (1, NULL)", [1]),
        ("k0 = NULL", []),
        ("k0 IN (NULL)", []),
        ("k0 < NULL", []),
    ],
)
def test_points(where: str, keys: list[int]) -> None:
    kind = AccessKind.POINT if len(keys) == 1 else AccessKind.POINTS
    assert path(f"SELECT * FROM app.t WHERE {where}") == AccessPath(kind, tuple((k,) for k in keys), exact=True)


@pytest.mark.parametrize(
    ("where", "lower", "upper"),
    [
        ("k0 > 5", (5, False), None),
        ("k0 >= 5", (5, True), None),
        ("5 > k0", None, (5, False)),
        ("k0 <= 5 AND k0 > 1", (1, False), (5, True)),
        ("k0 BETWEEN 1 AND 5", (1, True), (5, True)),
    ],
)
def test_ranges(where: str, lower: Any, upper: Any) -> None:
    expected = AccessPath(AccessKind.RANGE, lower=lower, upper=upper, exact=True)
    assert path(f"SELECT * FROM t WHERE {where}") == expected


@pytest.mark.parametrize(
    "where",
    [
        *("k0 = 5.0", "k0 = 5.5", "k0 = 1e0", "k0 = 9223372036854775808", "k0 = true", "k0 = 'five'", "k0 = ' 5'"),
        *("k0 = k0", "k0 = v", "k0 + 0 = 5", "k0 != 5", "NOT k0 = 5", "k0 = 5 OR v = 1", "k0 IS NULL", "k0 NOT IN (5)"),
        *("k0 IN (SELECT 5)", "k0 = (SELECT 5)", "k0 IN (5, 5.5)", "k0 BETWEEN SYMMETRIC 5 AND 1", "k0 = ?", "v = 5"),
        *("k0 BETWEEN 1 AND 5.5", "u.k0 = 5", "other.t.k0 = 5", "k0 = '05'", "abs(k0) = 5", "k0::INT = 5"),
    ],
)  # fmt: skip
def test_what_storage_cannot_decide_is_left_to_the_query_engine(where: str) -> None:
    assert path(f"SELECT * FROM t WHERE {where}") == AccessPath(AccessKind.FULL)


def test_a_conjunct_that_is_left_over_narrows_but_is_not_exact() -> None:
    assert path("SELECT * FROM t WHERE k0 = 5 AND v > 1") == AccessPath(AccessKind.POINT, ((5,),))
    assert path("SELECT * FROM t WHERE k0 = 5 AND k0 = 6") == AccessPath(AccessKind.POINT, ((5,),))
    assert path("SELECT * FROM t WHERE k0 = 5 AND k0 < 6") == AccessPath(AccessKind.POINT, ((5,),))
    assert path("SELECT * FROM t WHERE k0 >= 5 AND k0 <= 5.5") == AccessPath(AccessKind.RANGE, lower=(5, True))
    assert path("SELECT * FROM t WHERE k0 > 5 AND k0 > 6 LIMIT 3") == AccessPath(AccessKind.RANGE, lower=(5, False))


def test_composite_keys() -> None:
    def two(where: str) -> AccessPath:
        return path(f"SELECT * FROM t WHERE {where}", TWO)

    both = AccessPath(AccessKind.POINT, ((1, "a"),), exact=True)
    assert two("k1 = 'a' AND k0 = 1") == both
    assert two("k0 IN (2, 1) AND k1 IN ('b', 'a')").equals == ((1, "a"), (1, "b"), (2, "a"), (2, "b"))
    assert two("k0 = 1") == AccessPath(AccessKind.RANGE, prefix=(1,), exact=True)
    bounded = AccessPath(AccessKind.RANGE, prefix=(1,), lower=("b", True), exact=True)
    assert two("k0 = 1 AND k1 >= 'b'") == bounded
    assert two("k0 > 1 AND k1 = 'b'") == AccessPath(AccessKind.RANGE, lower=(1, False))
    assert two("k1 = 'b'") == AccessPath(AccessKind.FULL)
    assert two("k0 IN (1, 2)") == AccessPath(AccessKind.FULL)


def test_too_many_keys_are_scanned() -> None:
    many = ", ".join(map(str, range(5000)))
    assert path(f"SELECT * FROM t WHERE k0 IN ({many})").kind is AccessKind.FULL


# --- order, limit, projection --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "reverse", "limit", "offset", "exact"),
    [
        ("SELECT * FROM t LIMIT 3", False, 3, 0, True),
        ("SELECT * FROM t LIMIT 0", False, 0, 0, True),
        ("SELECT * FROM t LIMIT 3 OFFSET 2", False, 5, 2, True),
        ("SELECT * FROM t OFFSET 2", False, None, 2, True),
        ("SELECT * FROM t ORDER BY k0 LIMIT 3", False, 3, 0, True),
        ("SELECT * FROM t ORDER BY k0 DESC LIMIT 3", True, 3, 0, True),
        ("SELECT * FROM t ORDER BY k0 DESC, k1 DESC", True, None, 0, True),
        ("SELECT k1 AS k0 FROM t ORDER BY t.k0 LIMIT 3", False, 3, 0, True),
        ("SELECT v + 1 FROM t ORDER BY k0 DESC LIMIT 3", True, 3, 0, False),
        ("SELECT upper(k1) FROM t LIMIT 3", False, None, 0, False),
        ("SELECT count(*) FROM t LIMIT 3", False, None, 0, False),
        ("SELECT unnest([]) FROM t LIMIT 3", False, None, 0, False),
        ("SELECT DISTINCT v FROM t LIMIT 3", False, None, 0, False),
        ("SELECT v FROM t GROUP BY v LIMIT 3", False, None, 0, False),
        ("SELECT row_number() OVER () FROM t LIMIT 3", False, None, 0, False),
        ("SELECT * FROM t WHERE v = 1 LIMIT 3", False, None, 0, False),
        ("SELECT * FROM t ORDER BY v LIMIT 3", False, None, 0, False),
        ("SELECT * FROM t ORDER BY k1 LIMIT 3", False, None, 0, False),
        ("SELECT * FROM t ORDER BY k0, k1 DESC LIMIT 3", False, None, 0, False),
        ("SELECT * FROM t ORDER BY k0 + 1 LIMIT 3", False, None, 0, False),
        ("SELECT * FROM t ORDER BY 1 LIMIT 3", False, None, 0, False),
        ("SELECT v AS k0 FROM t ORDER BY k0 LIMIT 3", False, None, 0, False),
        ("SELECT * FROM t ORDER BY k0, k1, v LIMIT 3", False, None, 0, False),
        ("SELECT * FROM t LIMIT -1", False, None, 0, False),
        ("SELECT * FROM t LIMIT 1.5", False, None, 0, False),
        ("SELECT * FROM t LIMIT 10 PERCENT", False, None, 0, False),
        ("SELECT * FROM t USING SAMPLE 3", False, None, 0, False),
        ("SELECT * FROM t LIMIT (SELECT 3)", False, None, 0, False),
        ("SELECT * EXCLUDE (v) FROM t LIMIT 3", False, 3, 0, False),
        ("SELECT nope FROM t LIMIT 3", False, 3, 0, False),
    ],
)
def test_order_and_limit(sql: str, reverse: bool, limit: int | None, offset: int, exact: bool) -> None:
    expected = AccessPath(AccessKind.FULL, reverse=reverse, limit=limit, offset=offset, exact=exact)
    assert path(sql, TWO) == expected


def test_columns_with_one_value_order_nothing() -> None:
    found = path("SELECT * FROM t WHERE k0 = 1 ORDER BY k1 DESC, k0 LIMIT 2", TWO)
    assert found == AccessPath(AccessKind.RANGE, prefix=(1,), reverse=True, limit=2, exact=True)
    points = path("SELECT * FROM t WHERE k0 IN (1, 2) AND k1 = 'a' ORDER BY k1, k0 DESC", TWO)
    assert points == AccessPath(AccessKind.POINTS, ((2, "a"), (1, "a")), reverse=True, exact=True)


@pytest.mark.parametrize(
    ("limit", "offset", "stop"), [(3, 2, 5), (None, 2, None), (3, None, 3), (0, 0, 0), (2**70, 0, 2**70)]
)
def test_limit_as_parameter(limit: Any, offset: Any, stop: int | None) -> None:
    found = path("SELECT * FROM t LIMIT $1 OFFSET $2", ONE, [limit, offset])
    assert found == AccessPath(AccessKind.FULL, limit=stop, offset=offset or 0, exact=True)


@pytest.mark.parametrize("limit", [-1, 1.5, "3", True, Decimal(3)])
def test_odd_limits_are_the_query_engines_business(limit: Any) -> None:
    assert path("SELECT * FROM t LIMIT $1", ONE, [limit]) == AccessPath(AccessKind.FULL)


def test_projection() -> None:
    def projection(sql: str) -> Any:
        return plan_access(tree(sql), TWO).projection

    star = (("k0", "k0"), ("k1", "k1"), ("v", "v"))
    assert projection("SELECT * FROM t") == star
    assert projection("SELECT t.* FROM app.t") == star
    assert projection('SELECT V, o.k0 AS "X" FROM t AS o') == (("v", "v"), ("X", "k0"))
    assert projection("SELECT k0, k0 FROM t") == (("k0", "k0"), ("k0", "k0"))
    assert projection("SELECT _seq FROM t") is None
    assert projection("SELECT v + 1 FROM t") is None
    assert projection("SELECT t.v FROM t AS o") is None
    assert projection("SELECT v FROM t AS o(a, b, c)") is None


# --- other tables, other scopes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t JOIN u ON t.v = u.v WHERE t.k0 = 5",
        "SELECT * FROM u LEFT JOIN t ON t.v = u.v WHERE t.k0 = 5",
        "SELECT * FROM u FULL JOIN app.t AS t USING (v) WHERE t.k0 = 5 AND u.v > 1 LIMIT 3",
        "SELECT count(*) FROM t, u WHERE t.k0 = 5",
        "SELECT v, count(*) FROM t WHERE k0 = 5 GROUP BY v HAVING count(*) > 1",
        "SELECT * FROM t WHERE k0 = 5 AND v IN (SELECT v FROM u)",
        "WITH c AS (SELECT * FROM u) SELECT * FROM t, c WHERE t.k0 = 5",
    ],
)
def test_joins_and_aggregates_are_narrowed(sql: str) -> None:
    assert path(sql) == AccessPath(AccessKind.POINT, ((5,),))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t JOIN u ON t.v = u.v WHERE k0 = 5",
        "SELECT * FROM t a, t b WHERE a.k0 = 5",
        "SELECT * FROM t WHERE k0 = 5 AND v IN (SELECT v FROM t)",
        "SELECT * FROM u ASOF JOIN t ON t.v >= u.v WHERE t.k0 = 5",
        "SELECT * FROM u POSITIONAL JOIN t WHERE t.k0 = 5",
        "SELECT * FROM t WHERE k0 = 5 UNION SELECT * FROM u",
        "SELECT * FROM (SELECT * FROM t) s WHERE k0 = 5",
        "WITH t AS (SELECT 5 AS k0) SELECT * FROM t WHERE k0 = 5",
        "SELECT * FROM other.t WHERE k0 = 5",
        "SELECT * FROM t TABLESAMPLE 10% WHERE k0 = 5",
        "SELECT * FROM t AS x(a, k0) WHERE k0 = 5",
    ],
)
def test_what_could_need_more_rows_is_not_narrowed(sql: str) -> None:
    assert path(sql) == AccessPath(AccessKind.FULL)


# --- values --------------------------------------------------------------------------------------------------

DAY, INSTANT = date(2024, 5, 1), datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
SOME_UUID = UUID("0a0b0c0d-0000-4000-8000-000000000001")


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        (ColumnType(TypeName.SMALLINT), 32767, 32767),
        (ColumnType(TypeName.SMALLINT), 32768, UNUSABLE),
        (ColumnType(TypeName.INT), "-7", -7),
        (ColumnType(TypeName.INT), True, UNUSABLE),
        (ColumnType(TypeName.DOUBLE), 1, 1.0),
        (ColumnType(TypeName.DOUBLE), 2**53 + 1, UNUSABLE),
        (ColumnType(TypeName.DOUBLE), float("nan"), UNUSABLE),
        (ColumnType(TypeName.DOUBLE), float("inf"), UNUSABLE),
        (ColumnType(TypeName.DOUBLE), Decimal("0.5"), UNUSABLE),
        (ColumnType(TypeName.FLOAT), 0.5, 0.5),
        (ColumnType(TypeName.FLOAT), 0.1, UNUSABLE),
        (ColumnType(TypeName.FLOAT), 1e300, UNUSABLE),
        (ColumnType(TypeName.DECIMAL, 6, 2), Decimal("1.5"), Decimal("1.50")),
        (ColumnType(TypeName.DECIMAL, 6, 2), Decimal("1.501"), UNUSABLE),
        (ColumnType(TypeName.DECIMAL, 6, 2), Decimal("10000"), UNUSABLE),
        (ColumnType(TypeName.DECIMAL, 6, 2), Decimal("NaN"), UNUSABLE),
        (ColumnType(TypeName.DECIMAL, 6, 2), 9999, Decimal(9999)),
        (ColumnType(TypeName.DECIMAL, 38, 30), 1, UNUSABLE),
        (ColumnType(TypeName.DECIMAL, 6, 2), 1.5, UNUSABLE),
        (TEXT, "ü", "ü"),
        (TEXT, "\ud800", UNUSABLE),
        (TEXT, 5, UNUSABLE),
        (ColumnType(TypeName.BYTES), b"x", b"x"),
        (ColumnType(TypeName.BYTES), "x", UNUSABLE),
        (ColumnType(TypeName.BOOLEAN), True, True),
        (ColumnType(TypeName.BOOLEAN), 1, UNUSABLE),
        (ColumnType(TypeName.TIMESTAMP), INSTANT.replace(tzinfo=None), INSTANT),
        (ColumnType(TypeName.TIMESTAMP), INSTANT.astimezone(timezone(timedelta(hours=2))), INSTANT),
        (ColumnType(TypeName.TIMESTAMP), "2024-05-01 12:30:00", INSTANT),
        (ColumnType(TypeName.TIMESTAMP), "2024-05-01 12:30:00+02", UNUSABLE),
        (ColumnType(TypeName.TIMESTAMP), "2024-02-30", UNUSABLE),
        (ColumnType(TypeName.TIMESTAMP), DAY, UNUSABLE),
        (ColumnType(TypeName.TIMESTAMP), datetime.max, UNUSABLE),
        (ColumnType(TypeName.DATE), DAY, DAY),
        (ColumnType(TypeName.DATE), "2024-05-01", DAY),
        (ColumnType(TypeName.DATE), INSTANT, UNUSABLE),
        (ColumnType(TypeName.TIME), time(1, 2), time(1, 2)),
        (ColumnType(TypeName.TIME), time(1, 2, tzinfo=UTC), UNUSABLE),
        (ColumnType(TypeName.UUID), SOME_UUID, SOME_UUID),
        (ColumnType(TypeName.UUID), str(SOME_UUID), SOME_UUID),
        (ColumnType(TypeName.UUID), str(SOME_UUID).upper(), UNUSABLE),
        (ColumnType(TypeName.UUID), SOME_UUID.bytes, UNUSABLE),
    ],
)
def test_values_that_storage_can_compare(kind: ColumnType, value: Any, key: Any) -> None:
    read = reader(kind)
    assert read is not None
    assert read(value) == key
    assert type(read(value)) is type(key)


def test_json_keys_are_never_compared_by_storage() -> None:
    schema = table(ColumnType(TypeName.JSON))
    assert path("SELECT * FROM t WHERE k0 = '1' ORDER BY k0 LIMIT 1", schema) == AccessPath(AccessKind.FULL)


@pytest.mark.parametrize("params", [[], [None], ["x"], [5.5]])
def test_a_prepared_lookup_with_values_it_was_not_made_for(params: list[Any]) -> None:
    plan = plan_access(tree("SELECT * FROM t WHERE k0 = $1"), ONE)
    assert plan.bind([5]) == AccessPath(AccessKind.POINT, ((5,),), exact=True)
    nothing = AccessPath(AccessKind.POINTS, exact=True)
    assert plan.bind(params) == (nothing if params == [None] else AccessPath(AccessKind.FULL))


# --- against DuckDB ------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    type: ColumnType
    values: list[Any]
    odd: list[Any]  # values of other types, to be compared with the column


KINDS = [
    Kind(BIGINT, [-(2**63), -1, 0, 1, 2, 5, 2**63 - 1], ["1", "x", 1.0, 1.5, Decimal("1.0"), Decimal("0.5"), 2**63, True]),
    Kind(ColumnType(TypeName.SMALLINT), [-5, 0, 1, 7], [70000, "7", -5.5, Decimal(7)]),
    Kind(TEXT, ["", "a", "b", "B", "ab", "ü", "\U0010ffff", "\ue000"], [1, b"a"]),
    Kind(ColumnType(TypeName.DECIMAL, 6, 2), [Decimal(s) for s in ("-1.50", "0.00", "1.50", "9999.99")],
         [0, 10000, 1.5, Decimal("1.501"), Decimal("1.5"), Decimal("1.500"), "1.5", Decimal("1E+3")]),
    Kind(ColumnType(TypeName.BOOLEAN), [False, True], [0, 1, "true"]),
    Kind(ColumnType(TypeName.TIMESTAMP), [INSTANT, INSTANT + timedelta(microseconds=1), datetime(1960, 1, 1, tzinfo=UTC)],
         [INSTANT.replace(tzinfo=None), INSTANT.astimezone(timezone(timedelta(hours=-3))), DAY, "2024-05-01 12:30:00", "1960-01-01"]),
    Kind(ColumnType(TypeName.DATE), [date(1960, 1, 1), DAY, date(2024, 5, 2)], ["2024-05-01", INSTANT, INSTANT.replace(tzinfo=None)]),
    Kind(ColumnType(TypeName.TIME), [time(0), time(12, 30), time(23, 59, 59, 999999)], ["12:30:00"]),
    Kind(ColumnType(TypeName.UUID), [UUID(int=1), SOME_UUID, UUID(int=2**127), UUID(int=2**128 - 1)],
         [str(SOME_UUID), str(SOME_UUID).upper(), SOME_UUID.hex]),
    Kind(ColumnType(TypeName.DOUBLE), [-1.5, 0.0, 0.1, 1.0, 1e300], [0, 1, Decimal("0.1"), "0.1", -0.0, float("inf"), float("nan")]),
    Kind(ColumnType(TypeName.FLOAT), [-1.5, 0.0, 0.5, 2.0**-10], [0.1, 0, Decimal("0.5"), 1e300]),
    Kind(ColumnType(TypeName.BYTES), [b"", b"a", b"a\x00", b"\xff"], ["a"]),
]  # fmt: skip


class Case(NamedTuple):
    schema: TableSchema
    rows: list[Row]
    sql: str
    params: list[Any]
    total_order: bool
    limited: bool


def literal(value: Any) -> str | None:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int() | Decimal():
            return format(value, "f") if isinstance(value, Decimal) else str(value)
        case str() if "\x00" not in value:
            return "'" + value.replace("'", "''") + "'"
        case UUID() | date() if not isinstance(value, datetime):
            return f"'{value}'"
        case datetime() if value.tzinfo is UTC:
            return f"TIMESTAMP '{value.replace(tzinfo=None)}'"
    return None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    schema = table(*(kind.type for kind in kinds))
    key = st.tuples(*(st.sampled_from(kind.values) for kind in kinds))
    keys = sorted(draw(st.sets(key, max_size=12)))
    rows = [(*k, draw(st.sampled_from([None, 1, 2]))) for k in keys]
    params: list[Any] = []

    def value(kind: Kind) -> str:
        usual, odd = st.sampled_from(kind.values), st.sampled_from([*kind.odd, None])
        chosen = draw(st.one_of(usual, usual, usual, odd))
        text = literal(chosen)
        if text is not None and draw(st.booleans()):
            return text
        params.append(chosen)
        return f"${len(params)}"

    def conjunct() -> str:
        i = draw(st.integers(0, len(kinds) - 1))
        kind, column = kinds[i], draw(st.sampled_from([f"k{i}", f"t.k{i}"]))
        match draw(st.integers(0, 9)):
            case 0 | 1 | 2 | 3:
                return f"{column} = {value(kind)}"
            case 4:
                return f"{column} IN ({', '.join(value(kind) for _ in range(draw(st.integers(1, 3))))})"
            case 5:
                return f"{column} BETWEEN {value(kind)} AND {value(kind)}"
            case 6:
                return f"{value(kind)} <= {column}"
            case 7 | 8:
                return f"{column} {draw(st.sampled_from(['<', '<=', '>', '>=']))} {value(kind)}"
        return "v = 1"

    shown = draw(st.sampled_from(["*", "*", "v, k0", "k0 AS v, v AS k0", "v + 1 AS w", "count(*) AS n", "DISTINCT v"]))
    sql = f"SELECT {shown} FROM app.t"
    if conjuncts := [conjunct() for _ in range(draw(st.integers(0, 4)))]:
        sql += " WHERE " + " AND ".join(conjuncts)
    ordered = draw(st.booleans())
    if ordered:
        columns = draw(st.permutations(range(len(kinds)))) if draw(st.booleans()) else range(len(kinds))
        down = draw(st.sampled_from(["", " DESC"]))
        sql += " ORDER BY " + ", ".join(f"t.k{i}{draw(st.sampled_from([down, down, '']))}" for i in columns)
    limited = draw(st.booleans())
    if limited:
        sql += f" LIMIT {draw(st.integers(0, 4))}"
    if draw(st.booleans()):
        sql += f" OFFSET {draw(st.integers(0, 3))}"
        limited = True
    return Case(schema, rows, sql, params, ordered, limited)


@pytest.fixture(scope="module")
def engine() -> Iterator[QueryEngine]:
    engine = QueryEngine()
    yield engine
    engine.close()


def scan(rows: list[Row], width: int, path: AccessPath) -> list[Row]:
    """What storage does with a path: `rows` are in key order."""
    if path.kind in (AccessKind.POINT, AccessKind.POINTS):
        by_key = {row[:width]: row for row in rows}
        found = [by_key[key] for key in path.equals if key in by_key]
    else:
        at = len(path.prefix)
        found = [row for row in rows if row[:at] == path.prefix]
        if path.lower is not None:
            bound, inclusive = path.lower
            found = [row for row in found if row[at] > bound or (inclusive and row[at] == bound)]
        if path.upper is not None:
            bound, inclusive = path.upper
            found = [row for row in found if row[at] < bound or (inclusive and row[at] == bound)]
        found = found[::-1] if path.reverse else found
    return found if path.limit is None else found[: path.limit]


def ask(engine: QueryEngine, case: Case, rows: list[Row]) -> list[Row]:
    columns = zip(*rows, strict=True) if rows else [()] * len(case.schema.columns)
    fields = arrow_schema(case.schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
    data = pa.Table.from_arrays(arrays, schema=fields)
    return list(Result.of_arrow(engine.run(tree(case.sql), {("app", "t"): data}, case.params)).stored_rows())


def by_path(engine: QueryEngine, case: Case, plan: AccessPlan) -> list[Row]:
    path = plan.bind(case.params)
    found = scan(case.rows, len(case.schema.primary_key), path)
    if not path.exact:
        return ask(engine, case, found)
    assert plan.projection is not None
    names = case.schema.column_names
    picked = [names.index(column) for _, column in plan.projection]
    return [tuple(row[i] for i in picked) for row in found[path.offset :]]


def everything(engine: QueryEngine, case: Case) -> list[Row]:
    """The answer without LIMIT and OFFSET, only asked when some of its rows are needed."""
    return ask(engine, case._replace(sql=case.sql.split(" LIMIT ")[0].split(" OFFSET ")[0]), case.rows)


@settings(max_examples=120, deadline=None)
@given(case=cases())
def test_a_path_answers_as_the_whole_table_does(engine: QueryEngine, case: Case) -> None:
    plan = plan_access(tree(case.sql), case.schema)
    try:
        whole = ask(engine, case, case.rows)
    except TablecastError:
        assert not plan.bind(case.params).exact, "an exact path would hide the error"
        return
    narrowed = by_path(engine, case, plan)
    if case.total_order:
        assert narrowed == whole
    elif case.limited:
        assert len(narrowed) == len(whole)
        assert all(row in everything(engine, case) for row in narrowed)
    else:
        assert sorted(narrowed, key=repr) == sorted(whole, key=repr)
