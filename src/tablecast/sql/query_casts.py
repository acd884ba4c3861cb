"""What a SELECT says to DuckDB about types, so that one text means the same here as in a filter.

- Type names that are ours (BYTES) become DuckDB's.
- A CAST of a literal is read by the evaluator's own reader: what it refuses is refused here too.
- DuckDB reads '2020-01-01 10:00+02:00' as a TIMESTAMP by leaving the offset out. Here it is that moment, in UTC: a literal is
  rewritten, and a cast of anything else goes through TIMESTAMPTZ, which keeps to the offset.
- The same text beside a TIMESTAMP, `ts = '…+02:00'`, literal or parameter, is that moment too. Beside a TEXT it is text. Where
  neither is certain it is refused, and a CAST says which one is meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any

from sqlglot import exp

from tablecast.core.expression.datatypes import column_type, name_as_duckdb
from tablecast.core.expression.literals import read, readable
from tablecast.core.expression.parse import ExpressionSql
from tablecast.errors import InvalidRequest, TypeMismatch
from tablecast.model.schema import ColumnType, TypeName

Kinds = Mapping[str, Set[TypeName | None]]  # by a column's name in lower case, over all tables of a query

_TIMESTAMP = ColumnType(TypeName.TIMESTAMP)
_CLOCK = r"\d{1,2}:\d{1,2}(?::\d{1,2}(?:\.\d*)?)?\s*"
_ZONED = re.compile(rf"\s*(?:-?\d+-\d+-\d+[ T]+{_CLOCK}([+-]\d.*|[A-Za-z].*)|{_CLOCK}([+-]\d.*))")
_UTC = re.compile(r"Z|UTC|[+-]00(?::?00)?", re.IGNORECASE)

# Where DuckDB gives all operands one type, so that a text takes that of what it stands beside.
_MEETING = (
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Between, exp.In, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least),
)
_SAME_KIND = (exp.Min, exp.Max, exp.Window, exp.TimestampTrunc)
_TEXTS = (exp.Concat, exp.DPipe, exp.Lower, exp.Upper, exp.Trim, exp.Substring, exp.Replace, exp.TimeToStr)
_TAKES_TEXT = (*_TEXTS, exp.Like, exp.ILike, exp.Interval, exp.StrToTime, exp.Contains, exp.StartsWith, exp.Length)


def settle_types(tree: exp.Expr, kinds: Kinds, zoned: Mapping[int, str]) -> None:
    """Rewrites `tree` in place. `zoned` are the parameters, by number, that are texts with a zone."""
    for named in tree.find_all(exp.DataType):
        name_as_duckdb(named)
    _keep_names(tree)
    for cast in list(tree.find_all(exp.Cast)):
        _settle_cast(cast)
    for leaf in list(tree.find_all(exp.Literal, exp.Placeholder)):
        if isinstance(leaf, exp.Placeholder):
            if int(leaf.name) in zoned:
                _settle_text(leaf, zoned[int(leaf.name)], kinds)
        elif leaf.is_string and has_zone(leaf.this):
            _settle_text(leaf, leaf.this, kinds)


def zoned_texts(params: Sequence[Any]) -> dict[int, str]:
    return {number: text for number, text in enumerate(params, 1) if type(text) is str and has_zone(text)}


def has_zone(text: str) -> bool:
    """Whether it reads like a time in a zone other than UTC."""
    found = _ZONED.fullmatch(text) if ":" in text else None
    return found is not None and not _UTC.fullmatch((found[1] or found[2]).strip())


# --- casts ----------------------------------------------------------------------------------------------


def _keep_names(tree: exp.Expr) -> None:
    """A result's columns are called as they were written: DuckDB would call them by what they are rewritten to."""
    for select in tree.find_all(exp.Select):
        for shown in list(select.expressions):
            casts = () if isinstance(shown, exp.Alias) else shown.find_all(exp.Cast)
            if any(cast.to.is_type(exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ) for cast in casts):
                shown.replace(exp.alias_(shown.copy(), shown.sql(dialect=ExpressionSql), quoted=True))


def _settle_cast(cast: exp.Cast) -> None:
    try:
        wanted = column_type(cast.to)
    except InvalidRequest:  # a type that only DuckDB knows
        return
    inner = cast.this.unnest()
    if isinstance(inner, exp.Literal) and inner.is_string:
        _settle_literal(cast, inner.this, wanted)
    elif wanted == _TIMESTAMP:
        cast.set("this", type(cast)(this=cast.this.copy(), to=exp.DataType(this=exp.DType.TIMESTAMPTZ)))


def _settle_literal(cast: exp.Cast, text: str, wanted: ColumnType) -> None:
    if not readable(wanted):
        return
    try:
        value = read(text, wanted)
    except TypeMismatch:
        if not isinstance(cast, exp.TryCast):
            raise
        return
    if isinstance(value, datetime):
        cast.set("this", exp.Literal.string(_in_utc(value)))


def _in_utc(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")


# --- texts with a zone ----------------------------------------------------------------------------------


def _settle_text(leaf: exp.Expr, text: str, kinds: Kinds) -> None:
    taken_for = _taken_for(leaf, kinds)
    if taken_for is TypeName.TIMESTAMP:
        read(text, _TIMESTAMP)
        zoned = exp.Cast(this=leaf.copy(), to=exp.DataType(this=exp.DType.TIMESTAMPTZ))
        leaf.replace(exp.Cast(this=zoned, to=exp.DataType(this=exp.DType.TIMESTAMP)))
    elif taken_for is not TypeName.TEXT:
        raise TypeMismatch(
            f"{text!r} has a zone, and it is not certain that it is meant as a TIMESTAMP: "
            "write CAST(… AS TIMESTAMP), or CAST(… AS TEXT)",
            value=text,
        )


def _taken_for(leaf: exp.Expr, kinds: Kinds) -> TypeName | None:
    """What DuckDB would take a text for, as far as that is certain."""
    outer = leaf.parent
    while isinstance(outer, exp.Paren | exp.Alias):
        leaf, outer = outer, outer.parent
    if isinstance(outer, exp.Cast):  # settled already, but for those that DuckDB alone knows
        return TypeName.TEXT
    if isinstance(outer, _MEETING):
        beside = {_kind(node, kinds) for node in outer.iter_expressions() if node is not leaf and not _is_text(node)}
        return TypeName.TEXT if not beside else beside.pop() if len(beside) == 1 else None
    if isinstance(outer, exp.Select):
        return None if outer.find_ancestor(exp.SetOperation) else TypeName.TEXT
    return TypeName.TEXT if isinstance(outer, _TAKES_TEXT) else None


def _is_text(node: exp.Expr) -> bool:
    """A literal takes the type of what is beside it, too."""
    bare = node.unnest()
    return isinstance(bare, exp.Placeholder) or (isinstance(bare, exp.Literal) and bool(bare.is_string))


def _kind(node: exp.Expr, kinds: Kinds) -> TypeName | None:
    node = node.unnest()
    if isinstance(node, exp.Column):
        found = kinds.get(node.name.lower(), frozenset())
        return next(iter(found)) if len(found) == 1 else None
    if isinstance(node, exp.Cast):
        try:
            return column_type(node.to.copy()).name
        except InvalidRequest:
            return None
    if isinstance(node, _SAME_KIND):
        return _kind(node.this, kinds)
    return TypeName.TEXT if isinstance(node, _TEXTS) else None
