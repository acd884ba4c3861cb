"""The type a CAST names."""

from __future__ import annotations

from sqlglot import exp

from tablecast.core.expression import tree
from tablecast.core.expression.numeric import MAX_DIGITS
from tablecast.core.expression.parse import canonical
from tablecast.errors import InvalidSchema, UnsupportedSql
from tablecast.model.schema import ColumnType, TypeName

_NAMED = {
    exp.DType.BOOLEAN: tree.BOOLEAN,
    exp.DType.SMALLINT: tree.SMALLINT,
    exp.DType.INT: tree.INT,
    exp.DType.BIGINT: tree.BIGINT,
    exp.DType.FLOAT: tree.FLOAT,
    exp.DType.DOUBLE: tree.DOUBLE,
    exp.DType.TEXT: tree.TEXT,
    exp.DType.VARCHAR: tree.TEXT,
    exp.DType.VARBINARY: tree.BYTES,
    exp.DType.JSON: tree.JSON,
    exp.DType.TIMESTAMP: tree.TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: tree.TIMESTAMP,
    exp.DType.DATE: tree.DATE,
    exp.DType.TIME: tree.TIME,
    exp.DType.UUID: tree.UUID,
}


def column_type(source: exp.DataType) -> ColumnType:
    """The type that `source` names; the node then says it in DuckDB's words."""
    name_as_duckdb(source)
    if source.this is exp.DType.DECIMAL:
        return _decimal(source)
    found = _NAMED.get(source.this)
    if found is None or source.expressions:
        known = ", ".join(name.value for name in TypeName)
        raise UnsupportedSql(f"the type {canonical(source)} is not supported; supported: {known}")
    return found


def name_as_duckdb(source: exp.DataType) -> None:
    """BYTES and JSONB are names of ours: in place, DuckDB's for the same type."""
    if source.this is exp.DType.USERDEFINED and str(source.args.get("kind")).upper() == "BYTES":
        source.set("this", exp.DType.VARBINARY)
        source.set("kind", None)
    elif source.this is exp.DType.JSONB:
        source.set("this", exp.DType.JSON)


def _decimal(source: exp.DataType) -> ColumnType:
    numbers = [int(param.name) for param in source.expressions]
    precision, scale = (*numbers, 0)[:2] if numbers else (18, 3)
    if not (1 <= precision <= MAX_DIGITS and 0 <= scale <= precision):
        raise InvalidSchema(f"{canonical(source)}: a DECIMAL has 1 to {MAX_DIGITS} digits, at most all after the point")
    return ColumnType(TypeName.DECIMAL, precision, scale)
