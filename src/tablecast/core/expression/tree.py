"""The typed tree: what an expression means, apart from how it is computed.

The binder turns SQL into these nodes; every form (row function, Arrow, later Spark) is compiled from them.
In the tree nothing is implicit any more: both sides of an operator have the type that the operator computes
in, because the binder put a `Cast` where SQL would convert silently, and BETWEEN, NULLIF, `CASE x WHEN`, IS
TRUE and the like are spelled out in simpler nodes. A node that is used twice is the same object, so a form
can compute it once.

NULL: a `Call` is strict (NULL if any argument is); the other nodes each say what they do with NULL. Order:
`And`, `Or`, `Case` and `Coalesce` look at their parts from left to right and stop as soon as the answer is
known. An error in a part that is not reached does not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tablecast.model.schema import ColumnType, TypeName

BOOLEAN = ColumnType(TypeName.BOOLEAN)
SMALLINT = ColumnType(TypeName.SMALLINT)
INT = ColumnType(TypeName.INT)
BIGINT = ColumnType(TypeName.BIGINT)
FLOAT = ColumnType(TypeName.FLOAT)
DOUBLE = ColumnType(TypeName.DOUBLE)
TEXT = ColumnType(TypeName.TEXT)
BYTES = ColumnType(TypeName.BYTES)
JSON = ColumnType(TypeName.JSON)
TIMESTAMP = ColumnType(TypeName.TIMESTAMP)
DATE = ColumnType(TypeName.DATE)
TIME = ColumnType(TypeName.TIME)
UUID = ColumnType(TypeName.UUID)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """`type` is None where the value is always NULL. Nodes are equal by identity."""

    type: ColumnType | None

    @property
    def parts(self) -> tuple[Node, ...]:
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Const(Node):
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class ColumnRef(Node):
    index: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Param(Node):
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Call(Node):
    """A strict operator or function, by its name in the forms' tables.

    `option` is what is fixed at compile time: the field of an EXTRACT, the escape character of a LIKE, …
    """

    name: str
    args: tuple[Node, ...]
    option: Any = None

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.args


@dataclass(frozen=True, slots=True, eq=False)
class Cast(Node):
    """Converts to `type`; `attempt` gives NULL where the conversion fails."""

    arg: Node
    attempt: bool = False

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.arg,)


@dataclass(frozen=True, slots=True, eq=False)
class And(Node):
    args: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.args


@dataclass(frozen=True, slots=True, eq=False)
class Or(Node):
    args: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.args


@dataclass(frozen=True, slots=True, eq=False)
class IsNull(Node):
    arg: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.arg,)


@dataclass(frozen=True, slots=True, eq=False)
class Same(Node):
    """IS NOT DISTINCT FROM: two NULLs are the same, NULL and a value are not."""

    left: Node
    right: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True, eq=False)
class Member(Node):
    """`arg IN (constants)`: NULL if `arg` is, or if it is not among `values` and the list held a NULL."""

    arg: Node
    values: frozenset[Any]
    has_null: bool

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.arg,)


@dataclass(frozen=True, slots=True, eq=False)
class Case(Node):
    """The result of the first condition that is TRUE, else `default`."""

    branches: tuple[tuple[Node, Node], ...]
    default: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return (*(part for branch in self.branches for part in branch), self.default)


@dataclass(frozen=True, slots=True, eq=False)
class Coalesce(Node):
    args: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.args


@dataclass(frozen=True, slots=True, eq=False)
class Extreme(Node):
    """GREATEST or LEAST of the arguments that are not NULL; the first of equal ones."""

    args: tuple[Node, ...]
    greatest: bool

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.args


@dataclass(frozen=True, slots=True, eq=False)
class Concat(Node):
    """CONCAT of text arguments: NULL counts as empty, so it is never NULL."""

    args: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.args


def walk(node: Node) -> Iterator[Node]:
    """Every node once, parents before their parts."""
    seen: set[int] = set()
    todo = [node]
    while todo:
        current = todo.pop()
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            todo.extend(current.parts)


def may_be_null(node: Node) -> bool:
    if isinstance(node, Const):
        return node.value is None
    return not isinstance(node, IsNull | Same | Concat)


def may_be_nan(node: Node) -> bool:
    """Stored numbers are never NaN; only arithmetic and parameters make one."""
    if node.type is None or node.type.name not in (TypeName.FLOAT, TypeName.DOUBLE):
        return False
    match node:
        case Const(value=value):
            return bool(value != value)
        case ColumnRef():
            return False
        case Cast(arg=arg):
            return may_be_nan(arg)
        case Call(name="negate" | "abs" | "floor" | "ceil", args=args):
            return may_be_nan(args[0])
        case Coalesce(args=args) | Extreme(args=args):
            return any(may_be_nan(arg) for arg in args)
        case Case(branches=branches, default=default):
            return may_be_nan(default) or any(may_be_nan(result) for _, result in branches)
    return True
