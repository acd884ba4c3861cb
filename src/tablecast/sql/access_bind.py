"""The values of one execution, turned into the part of a table that storage is to read.

Terms are conjuncts over key columns (see `access`). Their values are sorted into whole keys, or a prefix of
the key with bounds on the next column; a term that does not fit there, or whose value is UNUSABLE, is left to
DuckDB, and the path is then not exact.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tablecast.sql.access_values import UNUSABLE, Reader

MAX_POINTS = 4096  # more keys than this are not looked up one by one

Bound = tuple[Any, bool]  # value, inclusive


class AccessKind(enum.StrEnum):
    POINT = "point"
    POINTS = "points"
    RANGE = "range"
    FULL = "full"


_POINT = AccessKind.POINT


class AccessPath(NamedTuple):
    """`equals` are whole keys. `prefix`, `lower` and `upper` describe a RANGE.

    The scan may stop after `limit` rows, in which those that OFFSET skips are counted; `offset` is how many
    of them an exact path does not show.
    """

    kind: AccessKind
    equals: tuple[tuple[Any, ...], ...] = ()
    prefix: tuple[Any, ...] = ()
    lower: Bound | None = None
    upper: Bound | None = None
    reverse: bool = False
    limit: int | None = None
    offset: int = 0
    exact: bool = False


class Operand(NamedTuple):
    """A value of the statement: the parameter at `param`, or if that is negative `value` itself."""

    param: int
    value: Any

    def get(self, params: Sequence[Any]) -> Any:
        if self.param < 0:
            return self.value
        return params[self.param] if self.param < len(params) else UNUSABLE


class Term(NamedTuple):
    """A conjunct over the key column at `position`; `op` is = (any of `operands`), <, <=, >, >= or between."""

    position: int
    op: str
    operands: tuple[Operand, ...]
    read: Reader

    def values(self, params: Sequence[Any]) -> Any:
        """The keys it allows, or its bounds; none if a NULL makes it true of no row. UNUSABLE if any value is:
        that value decides as what all of them are compared.
        """
        found = []
        for operand in self.operands:
            value = operand.get(params)
            key = value if value is None else self.read(value) if value is not UNUSABLE else UNUSABLE
            if key is UNUSABLE:
                return UNUSABLE
            found.append(key)
        if self.op == "=":
            return tuple(sorted({key for key in found if key is not None}))
        return () if None in found else tuple(found)


class Shape(NamedTuple):
    """The statement without its terms.

    `row_wise`: every row gives one row, so LIMIT counts rows of the table. `residual`: WHERE says more than the
    terms. `order` is (position in the key, descending) by column, None if storage cannot give that order.
    """

    row_wise: bool
    residual: bool
    order: tuple[tuple[int, bool], ...] | None
    limit: Operand | None
    offset: Operand | None


class AccessPlan:
    """A SELECT's way to one table. `projection` pairs output names and columns; None: no path is exact."""

    __slots__ = ("_key_width", "_point", "_shape", "_terms", "projection")

    def __init__(
        self,
        key_width: int,
        terms: tuple[Term, ...],
        shape: Shape,
        projection: tuple[tuple[str, str], ...] | None,
    ) -> None:
        self._key_width = key_width
        self._terms = terms
        self._shape = shape
        self.projection = projection
        self._point = self._point_lookup()

    def bind(self, params: Sequence[Any] = ()) -> AccessPath:
        if self._point is not None:
            # A loop would cost as much as the rest: this is the path of every lookup by key.
            index, read = self._point
            key = read(params[index]) if index < len(params) else UNUSABLE
            if key is not UNUSABLE:
                return AccessPath(_POINT, ((key,),), (), None, None, False, None, 0, self.projection is not None)
        return _Binding(self._key_width, self._terms, self._shape, params).path(self.projection is not None)

    def _point_lookup(self) -> tuple[int, Reader] | None:
        """`WHERE id = $n` and nothing else: the parameter and its reader."""
        shape = self._shape
        if self._key_width != 1 or len(self._terms) != 1 or shape.residual or shape.order is None:
            return None
        term = self._terms[0]
        if term.op != "=" or len(term.operands) != 1 or shape.limit or shape.offset or not shape.row_wise:
            return None
        return (term.operands[0].param, term.read) if term.operands[0].param >= 0 else None


# --- binding -------------------------------------------------------------------------------------------


class _Binding:
    """One execution: the terms with their values, sorted into keys, prefix and bounds."""

    def __init__(self, key_width: int, terms: tuple[Term, ...], shape: Shape, params: Sequence[Any]) -> None:
        self.key_width = key_width
        self.shape = shape
        self.params = params
        self.whole = not shape.residual  # whether the path says all that WHERE says
        self.empty = False
        self.allowed: dict[int, tuple[Any, ...]] = {}
        self.bounds: dict[tuple[int, bool], Bound] = {}
        for term in terms:
            self._take(term)

    def _take(self, term: Term) -> None:
        values = term.values(self.params)
        if values is UNUSABLE:
            self.whole = False
        elif not values:
            self.empty = True
        elif term.op == "=":
            self.whole &= self.allowed.setdefault(term.position, values) is values
        elif term.op == "between":
            self._bound(term.position, True, (values[0], True))
            self._bound(term.position, False, (values[1], True))
        else:
            self._bound(term.position, term.op in (">", ">="), (values[0], term.op in (">=", "<=")))

    def _bound(self, position: int, lower: bool, bound: Bound) -> None:
        self.whole &= self.bounds.setdefault((position, lower), bound) is bound

    def path(self, plain: bool) -> AccessPath:
        narrowed = self._narrow()
        singles = self._singles(narrowed)
        reverse = self._reverse(singles)
        limit = self._limit()
        ordered = self.whole and self.shape.row_wise and reverse is not None and limit is not UNUSABLE
        if not ordered:
            return narrowed
        stop, offset = limit
        keys = narrowed.equals[::-1] if reverse else narrowed.equals
        return narrowed._replace(equals=keys, reverse=bool(reverse), limit=stop, offset=offset, exact=plain)

    def _narrow(self) -> AccessPath:
        if self.empty:
            return AccessPath(AccessKind.POINTS)
        width = self.key_width
        allowed = [self.allowed[i] for i in range(width) if i in self.allowed]
        if len(allowed) == width and math.prod(map(len, allowed)) <= MAX_POINTS:
            self.whole &= not self.bounds
            keys = tuple(itertools.product(*allowed))
            return AccessPath(AccessKind.POINT if len(keys) == 1 else AccessKind.POINTS, keys)
        return self._range()

    def _range(self) -> AccessPath:
        prefix: list[Any] = []
        while len(values := self.allowed.get(len(prefix), ())) == 1:
            prefix.append(values[0])
        at = len(prefix)
        lower, upper = self.bounds.get((at, True)), self.bounds.get((at, False))
        used = (lower is not None) + (upper is not None)
        self.whole &= len(self.allowed) == at and len(self.bounds) == used
        if not prefix and not used:
            return AccessPath(AccessKind.FULL)
        return AccessPath(AccessKind.RANGE, (), tuple(prefix), lower, upper)

    def _singles(self, path: AccessPath) -> set[int]:
        """Key columns with one value in all rows of the path: they order nothing."""
        if path.kind is AccessKind.RANGE:
            return set(range(len(path.prefix)))
        return {i for i, values in self.allowed.items() if len(values) == 1 and path.equals}

    def _reverse(self, singles: set[int]) -> bool | None:
        """Whether ORDER BY is the key's order backwards; None if it is neither that nor the key's order."""
        if self.shape.order is None:
            return None
        wanted = [(position, down) for position, down in self.shape.order if position not in singles]
        having = [position for position in range(self.key_width) if position not in singles]
        if [position for position, _ in wanted] != having[: len(wanted)]:
            return None
        directions = {down for _, down in wanted}
        return None if len(directions) == 2 else directions == {True}

    def _limit(self) -> Any:
        """(rows after which to stop or None, rows to skip), or UNUSABLE."""
        shape = self.shape
        limit = shape.limit.get(self.params) if shape.limit else None
        offset = shape.offset.get(self.params) if shape.offset else None
        for value in (limit, offset):
            if value is not None and (type(value) is not int or value < 0):
                return UNUSABLE
        skipped = offset or 0
        return (None if limit is None else limit + skipped, skipped)
