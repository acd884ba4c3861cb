"""A DataFrame's columns against a table's: what is taken, and what is refused before a row is touched."""

from __future__ import annotations

import pytest
from pyspark.sql import types
from pyspark.sql.types import DataType, StructField, StructType

from tablecast.errors import InvalidRequest, NotNullViolation, TablecastError, TypeMismatch, UnknownColumn
from tablecast.model.schema import Column, ColumnType, Default, DefaultKind, TableKind, TableSchema, TypeName
from tablecast.spark.fitting import Fit, fit


def table(*columns: Column, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(1, "app", "orders", TableKind.SHARED, columns, key)


def column(name: str, kind: TypeName, *, not_null: bool = False, default: bool = False) -> Column:
    given = Default(DefaultKind.LITERAL, "x") if default else None
    return Column(name, ColumnType(kind, *((12, 2) if kind is TypeName.DECIMAL else ())), not_null, given)


ORDERS = table(
    column("id", TypeName.BIGINT),
    column("Customer", TypeName.TEXT, not_null=True),
    column("amount", TypeName.DECIMAL),
    column("status", TypeName.TEXT, not_null=True, default=True),
)


NUMBERS: dict[str, DataType] = {
    "tinyint": types.ByteType(),
    "smallint": types.ShortType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "decimal": types.DecimalType(38, 10),
}
TIMES: dict[str, DataType] = {
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
    "date": types.DateType(),
}
NESTED: dict[str, DataType] = {
    "array": types.ArrayType(types.LongType()),
    "map": types.MapType(types.StringType(), types.LongType()),
    "struct": StructType([StructField("a", types.LongType())]),
    "variant": types.VariantType(),
    "interval": types.DayTimeIntervalType(),
}
SPARK_TYPES: dict[str, DataType] = {
    **NUMBERS, **TIMES, **NESTED,
    "boolean": types.BooleanType(), "time": types.TimeType(6), "binary": types.BinaryType(),
    "string": types.StringType(), "void": types.NullType(),
}  # fmt: skip


def frame(ddl: str) -> StructType:
    """`name type, …`. Spark's own parser would start a JVM."""
    fields = [text.split() for text in ddl.split(",")]
    return StructType([StructField(name, SPARK_TYPES[kind]) for name, kind in fields])


def test_columns_are_found_in_any_order_and_case() -> None:
    assert fit(frame("AMOUNT double, Id int, customer string"), ORDERS, "insert") == Fit(
        (0, 1, 2), ("amount", "id", "Customer")
    )


def test_an_exact_name_goes_before_one_that_differs_in_case() -> None:
    both = table(column("id", TypeName.BIGINT), column("a", TypeName.INT), column("A", TypeName.TEXT))
    assert fit(frame("id bigint, A string, a int"), both, "insert").names == ("id", "A", "a")


def test_unknown_columns_are_named_together() -> None:
    with pytest.raises(UnknownColumn, match=r"app\.orders has no columns 'x', 'y'; it has: id, Customer") as refused:
        fit(frame("id bigint, x int, customer string, y int"), ORDERS, "insert")
    assert refused.value.details["columns"] == ["x", "y"]


def test_one_column_twice() -> None:
    with pytest.raises(InvalidRequest, match="'amount' and 'AMOUNT' of the DataFrame are both 'amount'"):
        fit(frame("id bigint, customer string, amount int").add("AMOUNT", types.LongType()), ORDERS, "insert")


def test_what_the_table_demands_must_be_there() -> None:
    with pytest.raises(NotNullViolation, match="the DataFrame has no columns 'id', 'Customer'"):
        fit(frame("amount int"), ORDERS, "insert")


def test_what_has_a_default_need_not() -> None:
    assert fit(frame("id int, customer string"), ORDERS, "upsert").names == ("id", "Customer")


def test_a_delete_takes_the_key_and_leaves_the_rest() -> None:
    assert fit(frame("amount int, id int"), ORDERS, "delete") == Fit((1,), ("id",))
    with pytest.raises(NotNullViolation, match="needs the primary key: the DataFrame has no column 'id'"):
        fit(frame("amount int"), ORDERS, "delete")


def test_the_op_column_is_kept_apart() -> None:
    assert fit(frame("id int, OP string, customer string"), ORDERS, "changes", "op").names == ("id", "op", "Customer")
    with pytest.raises(UnknownColumn, match="opColumn 'what' is not in the DataFrame"):
        fit(frame("id int, op string"), ORDERS, "changes", "what")
    with pytest.raises(TypeMismatch, match="opColumn 'op' is int"):
        fit(frame("id int, op int"), ORDERS, "changes", "op")
    with pytest.raises(InvalidRequest, match="opColumn 'status' is a column of app"):
        fit(frame("id int, status string"), ORDERS, "changes", "status")


FITS = {
    TypeName.BOOLEAN: ("boolean",),
    **{kind: tuple(NUMBERS) for kind in (TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT)},
    **{kind: tuple(NUMBERS) for kind in (TypeName.FLOAT, TypeName.DOUBLE, TypeName.DECIMAL)},
    TypeName.TEXT: (),
    TypeName.BYTES: ("binary",),
    TypeName.JSON: (),
    TypeName.TIMESTAMP: tuple(TIMES),
    TypeName.DATE: ("date",),
    TypeName.TIME: ("time",),
    TypeName.UUID: ("binary",),
}


@pytest.mark.parametrize("kind", TypeName)
def test_types(kind: TypeName) -> None:
    one = table(column("id", TypeName.BIGINT), column("v", kind))
    taken = set()
    for given in SPARK_TYPES:
        try:
            fit(frame(f"id bigint, v {given}"), one, "insert")
            taken.add(given)
        except TablecastError as refused:
            assert isinstance(refused, TypeMismatch)
            assert "column 'v' of app.orders is" in str(refused)
    text = set() if kind is TypeName.BYTES else {"string"}
    assert taken == {"void", *FITS[kind], *text}
