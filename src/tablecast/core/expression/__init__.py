"""The one evaluator: SQL expressions over one row and over Arrow batches, with DuckDB's meaning.

    text ──parse──▶ syntax tree ──bind──▶ typed tree ──▶ row form     a Python function
         (sqlglot)              (types, casts)       ╰─▶ Arrow form   kernels over a record batch

Route filters, PARTITION BY, CHECK and UPDATE all go through here, so a condition means the same wherever it
is evaluated. The meaning is DuckDB's: three-valued logic, its numeric types and errors, strings by code
point. What cannot be made equal is refused when it is compiled, never approximated.

**Errors while evaluating.** AND and OR go from left to right and stop at FALSE and TRUE; CASE and COALESCE compute only
the branch they need. An overflow or failed cast in a part that is not reached does not happen; in one that
is reached it is an ExpressionError. DuckDB agrees for CASE and COALESCE; for AND and OR it promises no
order, so an expression that can fail there may fail in one and not in the other.
"""

from tablecast.codec.arrow_types import arrow_type
from tablecast.core.expression.compiled import Expression, compile_expression, compile_filter
from tablecast.core.expression.parse import parse_expression

__all__ = ["Expression", "arrow_type", "compile_expression", "compile_filter", "parse_expression"]
