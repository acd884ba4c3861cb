"""The row form: a typed tree becomes the source of one Python function, compiled once.

For `amount > 100 AND status = 'paid'` it is:

    def compute(r, p=()):
        v0 = r.c2
        v1 = None if v0 is None else v0 > 100
        v2 = v1
        if v2 is not False:
            v3 = r.c3
            v4 = None if v3 is None else v3 == 'paid'
            if v4 is not True: v2 = v4
        return v2

Every node becomes a variable (or a literal), and is computed once: a variable set in a block is known to
the blocks inside it. Only literals, column numbers and names made here get into the source; functions and
values that have no exact literal are bound in the function's globals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tablecast.core.expression import numeric, textual
from tablecast.core.expression.casts import attempting, converter
from tablecast.core.expression.failure import Failure
from tablecast.core.expression.scalars import Implementation, implementation
from tablecast.core.expression.tree import (
    FLOAT,
    And,
    Call,
    Case,
    Cast,
    Coalesce,
    ColumnRef,
    Concat,
    Const,
    Extreme,
    IsNull,
    Member,
    Node,
    Or,
    Param,
    Same,
    may_be_nan,
    may_be_null,
)
from tablecast.errors import ExpressionError

RowFunction = Callable[..., Any]


def row_function(node: Node, sql: str) -> RowFunction:
    """`f(row, params=())` for a row struct with attributes c0, c1, …"""
    writer = _Writer(lambda column: f"r.c{column.index}")
    return writer.function(node, "r, p=()", sql)


def cells_function(node: Node, columns: list[ColumnRef], sql: str) -> RowFunction:
    """`f(params, *cells)` for the values of `columns`, in this order: what maps over a batch."""
    names = {column.index: f"x{column.index}" for column in columns}
    writer = _Writer(lambda column: names[column.index])
    return writer.function(node, ", ".join(["p", *names.values()]), sql)


class _Writer:
    def __init__(self, load: Callable[[ColumnRef], str]) -> None:
        self._load = load
        self._lines: list[str] = []
        self._level = 2
        self._bound: dict[str, Any] = {"Failure": Failure}
        self._known: list[dict[int, str]] = [{}]  # node -> variable, one layer per open block
        self._variables = 0

    def function(self, node: Node, parameters: str, sql: str) -> RowFunction:
        result = self._emit(node)
        self._bound["failed"] = _failed(sql)
        lines = [
            f"def compute({parameters}):",
            "    try:",
            *self._lines,
            f"        return {result}",
            "    except Failure as failure:",
            "        raise failed(failure) from None",
        ]
        exec(compile("\n".join(lines), "<expression>", "exec"), self._bound)
        compute: RowFunction = self._bound["compute"]
        return compute

    # --- writing --------------------------------------------------------------------------------------------

    def _write(self, line: str) -> None:
        self._lines.append("    " * self._level + line)

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._write(head)
        self._level += 1
        self._known.append({})
        yield
        self._known.pop()
        self._level -= 1

    def _variable(self) -> str:
        self._variables += 1
        return f"v{self._variables - 1}"

    def _assign(self, value: str) -> str:
        name = self._variable()
        self._write(f"{name} = {value}")
        return name

    def _bind(self, value: Any) -> str:
        name = f"k{len(self._bound)}"
        self._bound[name] = value
        return name

    def _literal(self, value: Any) -> str:
        return repr(value) if type(value) in (bool, int, str, bytes) or value is None else self._bind(value)

    # --- nodes ----------------------------------------------------------------------------------------------

    def _emit(self, node: Node) -> str:
        for layer in reversed(self._known):
            if id(node) in layer:
                return layer[id(node)]
        name = self._node(node)
        self._known[-1][id(node)] = name
        return name

    def _node(self, node: Node) -> str:
        match node:
            case Const(value=value):
                return self._literal(value)
            case ColumnRef():
                return self._assign(self._load(node))
            case Param(index=index):
                return self._assign(f"p[{index}]")
            case Call(args=args):
                return self._strict(args, implementation(node))
            case Cast(arg=arg):
                return self._cast(node, arg)
            case And(args=args):
                return self._connector(args, decided="False", neutral="True")
            case Or(args=args):
                return self._connector(args, decided="True", neutral="False")
            case IsNull(arg=arg):
                value = self._emit(arg)
                return self._assign(f"{value} is None" if may_be_null(arg) else "False")
            case Same():
                return self._same(node)
            case Member():
                return self._member(node)
            case Case():
                return self._case(node)
            case Coalesce(args=args):
                return self._coalesce(args)
            case Extreme():
                return self._extreme(node)
            case Concat(args=args):
                values = ", ".join(self._emit(arg) for arg in args)
                return self._assign(f"{self._bind(textual.concat)}({values})")
        raise AssertionError(node)

    def _strict(self, args: tuple[Node, ...], made: Implementation) -> str:
        values = [self._emit(arg) for arg in args]
        if any(isinstance(arg, Const) and arg.value is None for arg in args):
            return self._assign("None")
        if isinstance(made, str):
            computed = made.format(*values)
        else:
            computed = f"{self._bind(made)}({', '.join(values)})"
        nulls = " or ".join(f"{value} is None" for value, arg in zip(values, args, strict=True) if may_be_null(arg))
        return self._assign(f"None if {nulls} else {computed}" if nulls else computed)

    def _cast(self, node: Cast, arg: Node) -> str:
        assert node.type is not None and arg.type is not None
        convert = converter(arg.type, node.type)
        return self._strict((arg,), attempting(convert) if node.attempt else convert)

    def _connector(self, args: tuple[Node, ...], decided: str, neutral: str) -> str:
        result = self._assign(self._emit(args[0]))
        for arg in args[1:]:
            with self._block(f"if {result} is not {decided}:"):
                value = self._emit(arg)
                self._write(f"if {value} is not {neutral}: {result} = {value}")
        return result

    def _same(self, node: Same) -> str:
        left, right = (self._assign(self._emit(part)) for part in node.parts)
        equal = f"{left} == {right}"
        if may_be_nan(node.left) or may_be_nan(node.right):
            equal = f"{self._bind(numeric.float_equal)}({left}, {right})"
        return self._assign(f"{right} is None if {left} is None else {right} is not None and {equal}")

    def _member(self, node: Member) -> str:
        found = f"{{0}} in {self._bind(node.values)}"
        return self._strict((node.arg,), f"True if {found} else None" if node.has_null else found)

    def _case(self, node: Case) -> str:
        result, matched = self._variable(), self._assign("False")
        first, *others = node.branches
        self._branch(first, result, matched)
        for branch in others:
            with self._block(f"if not {matched}:"):
                self._branch(branch, result, matched)
        with self._block(f"if not {matched}:"):
            self._write(f"{result} = {self._emit(node.default)}")
        return result

    def _branch(self, branch: tuple[Node, Node], result: str, matched: str) -> None:
        test = self._emit(branch[0])
        with self._block(f"if {test}:"):
            self._write(f"{matched} = True")
            self._write(f"{result} = {self._emit(branch[1])}")

    def _coalesce(self, args: tuple[Node, ...]) -> str:
        result = self._assign(self._emit(args[0]))
        for arg in args[1:]:
            with self._block(f"if {result} is None:"):
                self._write(f"{result} = {self._emit(arg)}")
        return result

    def _extreme(self, node: Extreme) -> str:
        values = ", ".join(self._emit(arg) for arg in node.args)
        return self._assign(f"{self._bind(_extreme(node))}({values})")


def _extreme(node: Extreme) -> Callable[..., Any]:
    pick: Callable[..., Any] = max if node.greatest else min
    key = numeric.float_order if may_be_nan(node) else None

    def choose(*values: Any) -> Any:
        return pick((value for value in values if value is not None), key=key, default=None)

    def choose_float(*values: float | None) -> float | None:
        chosen: float | None = choose(*values)
        return None if chosen is None else chosen + 0.0  # DuckDB's 32-bit form knows no negative zero

    return choose_float if node.type == FLOAT else choose


def _failed(sql: str) -> Callable[[Failure], ExpressionError]:
    return lambda failure: ExpressionError(f"cannot evaluate {sql}: {failure}", expression=sql)
