"""The functions an expression may call, each bound to a typed node.

All depend on their arguments only. Aggregates, window functions, subqueries, the clock and random numbers
are refused: a filter must give the same answer for the same row, always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from tablecast.core.expression.lattice import is_decimal, is_integer, is_numeric
from tablecast.core.expression.numeric import MAX_DIGITS
from tablecast.core.expression.parse import canonical
from tablecast.core.expression.temporal import DATE_PARTS, STARTS, SYNONYMS, TIME_PARTS
from tablecast.core.expression.tree import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    TEXT,
    TIME,
    TIMESTAMP,
    Call,
    Cast,
    Concat,
    Const,
    Extreme,
    Node,
)
from tablecast.errors import TypeMismatch, UnsupportedSql
from tablecast.model.schema import ColumnType, TypeName

if TYPE_CHECKING:
    from tablecast.core.expression.bind import Binder

SUPPORTED = (
    "ABS, CAST, CEIL, COALESCE, CONCAT, CONTAINS, DATE_PART, DATE_TRUNC, EXTRACT, FLOOR, GREATEST, LEAST, LENGTH, "
    "LOWER, LTRIM, NULLIF, REPLACE, ROUND, RTRIM, STARTS_WITH, SUBSTRING, TRIM, TRY_CAST, UPPER"
)


def bind(binder: Binder, source: exp.Expr) -> Node:
    known = _FUNCTIONS.get(type(source))
    if known is not None:
        bound, arguments = known
        _check_arguments(source, arguments)
        return bound(binder, source)
    if isinstance(source, exp.Anonymous) and source.name.lower() == "date_part":
        return _date_part(binder, source)
    raise UnsupportedSql(f"{_refused(source)}; supported are operators, CASE, and the functions {SUPPORTED}")


def _check_arguments(source: exp.Expr, expected: str) -> None:
    """A function is refused with arguments that its binding would not look at, or without those it needs."""
    required = {name for name in expected.split() if not name.endswith("?")}
    allowed = {name.rstrip("?") for name in expected.split()} | _PARSER_NOTES
    given = {name for name, value in source.args.items() if value not in (None, False, [])}
    if not required <= given <= allowed:
        raise UnsupportedSql(f"{canonical(source)} does not have the arguments that the function takes here")


def _refused(source: exp.Expr) -> str:
    shown = canonical(source)
    shown = shown if len(shown) <= 80 else shown[:80] + "…"
    if isinstance(source, exp.AggFunc | exp.Window):
        return f"{shown} looks at more than one row and is not supported in an expression"
    if isinstance(source, exp.Query | exp.Subquery | exp.Exists):
        return f"a subquery is not supported in an expression: {shown}"
    return f"{shown} is not supported in an expression"


def _texts(name: str, result: ColumnType, *keys: str) -> Callable[[Binder, exp.Expr], Node]:
    """A function of text arguments only."""

    def bound(binder: Binder, source: exp.Expr) -> Node:
        args = tuple(binder.typed(source.args[key], TEXT, name.upper()) for key in keys)
        return Call(result, name, args)

    return bound


def _trim(binder: Binder, source: exp.Expr) -> Node:
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(source.args.get("position") or "").upper(), "trim")
    keys = ("this", "expression") if source.args.get("expression") else ("this",)
    return _texts(name, TEXT, *keys)(binder, source)


def _substring(binder: Binder, source: exp.Expr) -> Node:
    text = binder.typed(source.this, TEXT, "SUBSTRING")
    places = [source.args[key] for key in ("start", "length") if source.args.get(key) is not None]
    return Call(TEXT, "substring", (text, *(_whole(binder, place, BIGINT, "SUBSTRING") for place in places)))


def _whole(binder: Binder, source: exp.Expr, wanted: ColumnType, what: str) -> Node:
    """An integer argument, widened to `wanted`."""
    node = binder.settle(source)
    if node.type is None:
        return Const(wanted, None)
    if not is_integer(node.type) or (wanted == INT and node.type == BIGINT):
        raise TypeMismatch(f"{what} needs {wanted}, but {canonical(source)} is {node.type}")
    if isinstance(node, Const):
        return Const(wanted, node.value)
    return node if node.type == wanted else Cast(wanted, node)


def _concat(binder: Binder, source: exp.Expr) -> Node:
    args = [binder.as_text(argument) for argument in source.expressions]
    return Concat(TEXT, tuple(arg for arg in args if arg.type is not None))


def _extreme(binder: Binder, source: exp.Expr) -> Node:
    args = binder.meet([source.this, *source.expressions])
    if args[0].type is not None and args[0].type.name is TypeName.JSON:
        raise UnsupportedSql(f"JSON values have no order; CAST to TEXT in {canonical(source)}")
    return Extreme(args[0].type, tuple(args), isinstance(source, exp.Greatest))


def _number(binder: Binder, source: exp.Expr, what: str) -> Node:
    node = binder.settle(source.this)
    if node.type is not None and not is_numeric(node.type):
        raise TypeMismatch(f"{what} needs a number, but {canonical(source.this)} is {node.type}")
    return node


def _abs(binder: Binder, source: exp.Expr) -> Node:
    node = _number(binder, source, "ABS")
    return Const(BIGINT, None) if node.type is None else Call(node.type, "abs", (node,))


def _floor(binder: Binder, source: exp.Expr) -> Node:
    name = "floor" if isinstance(source, exp.Floor) else "ceil"
    node = _number(binder, source, name.upper())
    if node.type is None:
        return Const(DOUBLE, None)
    if is_integer(node.type):
        return Call(DOUBLE, name, (Cast(DOUBLE, node),))
    if is_decimal(node.type):
        return Call(ColumnType(TypeName.DECIMAL, node.type.precision, 0), name, (node,))
    return Call(node.type, name, (node,))


def _round(binder: Binder, source: exp.Expr) -> Node:
    node = _number(binder, source, "ROUND")
    given = source.args.get("decimals")
    digits = _whole(binder, given, INT, "ROUND") if given is not None else Const(INT, 0)
    if node.type is None:
        return Const(BIGINT, None)
    if is_decimal(node.type):
        return _round_decimal(node, node.type, digits, source)
    return Call(node.type, "round", (node, digits))


def _round_decimal(node: Node, found: ColumnType, digits: Node, source: exp.Expr) -> Node:
    if not isinstance(digits, Const) or digits.value is None:
        raise UnsupportedSql(f"ROUND of a DECIMAL needs a literal number of digits: {canonical(source)}")
    places: int = digits.value
    if places >= found.scale:
        return node
    if -places > found.precision - found.scale:  # DuckDB says 0 here even for NULL
        raise UnsupportedSql(f"{canonical(source)}: {found} has fewer digits before the point")
    precision = found.precision
    if places < 0 and found.scale == 0:
        precision = min(precision + 1, MAX_DIGITS)  # 99 rounds up to 100
    return Call(ColumnType(TypeName.DECIMAL, precision, max(places, 0)), "round_decimal", (node,), places)


def _date_part(binder: Binder, source: exp.Expr) -> Node:
    """EXTRACT(field FROM x) and DATE_PART('field', x)."""
    if isinstance(source, exp.Extract):
        field, value = source.this.name, source.expression
    else:
        field, value = _field(source.expressions, source)
    node = binder.settle(value)
    known = _fields(node.type, source)
    field = SYNONYMS.get(field.lower(), field.lower())
    if field not in known:
        raise UnsupportedSql(f"{field} of a {node.type} is not supported; supported: {', '.join(known)}")
    return Call(BIGINT, "part", (node,), field)


def _field(arguments: Sequence[exp.Expr], source: exp.Expr) -> tuple[str, exp.Expr]:
    if len(arguments) == 2 and arguments[0].is_string:
        return arguments[0].name, arguments[1]
    raise UnsupportedSql(f"DATE_PART takes the name of a field and a value: {canonical(source)}")


def _fields(found: ColumnType | None, source: exp.Expr) -> list[str]:
    if found == TIME:
        return list(TIME_PARTS)
    if found in (DATE, TIMESTAMP):
        return [*DATE_PARTS, *TIME_PARTS]
    raise TypeMismatch(f"{canonical(source)} needs a TIMESTAMP, DATE or TIME, not {found or 'NULL'}")


def _date_trunc(binder: Binder, source: exp.Expr) -> Node:
    unit = source.args["unit"].name.lower()
    node = binder.settle(source.this)
    if node.type not in (DATE, TIMESTAMP):
        raise TypeMismatch(f"{canonical(source)} needs a TIMESTAMP or DATE, not {node.type or 'NULL'}")
    if unit not in STARTS:
        raise UnsupportedSql(f"{canonical(source)} is not supported; supported units: {', '.join(STARTS)}")
    if node.type == DATE and unit in TIME_PARTS:  # DuckDB's optimizer takes such a comparison for false
        raise UnsupportedSql(f"{canonical(source)}: a DATE has no {unit}; leave out DATE_TRUNC or CAST to TIMESTAMP")
    return Call(TIMESTAMP, "trunc", (node if node.type == TIMESTAMP else Cast(TIMESTAMP, node),), unit)


# What sqlglot notes about a dialect's semantics; DuckDB's are the ones computed here.
_PARSER_NOTES = {"safe", "coalesce", "ignore_nulls"}

# Each with the arguments it takes, by sqlglot's names.
_FUNCTIONS: dict[type[exp.Expr], tuple[Callable[[Binder, exp.Expr], Node], str]] = {
    exp.Lower: (_texts("lower", TEXT, "this"), "this"),
    exp.Upper: (_texts("upper", TEXT, "this"), "this"),
    exp.Length: (_texts("length", BIGINT, "this"), "this"),
    exp.Replace: (_texts("replace", TEXT, "this", "expression", "replacement"), "this expression replacement"),
    exp.StartsWith: (_texts("starts_with", BOOLEAN, "this", "expression"), "this expression"),
    exp.Contains: (_texts("contains", BOOLEAN, "this", "expression"), "this expression"),
    exp.Trim: (_trim, "this expression? position?"),
    exp.Substring: (_substring, "this start length?"),
    exp.Concat: (_concat, "expressions"),
    exp.Greatest: (_extreme, "this expressions?"),
    exp.Least: (_extreme, "this expressions?"),
    exp.Abs: (_abs, "this"),
    exp.Floor: (_floor, "this"),
    exp.Ceil: (_floor, "this"),
    exp.Round: (_round, "this decimals?"),
    exp.Extract: (_date_part, "this expression"),
    exp.TimestampTrunc: (_date_trunc, "this unit"),
    exp.DateTrunc: (_date_trunc, "this unit"),
}
