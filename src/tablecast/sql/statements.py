"""One frozen value per SQL statement: what the parser hands to the planner.

Names are already folded (`Orders` is `orders`, `"Orders"` stays) and checked; what needs the catalog (default
namespaces, whether a table or column exists, types of expressions) is not.

Two rules hold for every syntax tree in here:

- *Trees are shared.* `parse` caches its statements by text, so a tree must be copied before it is changed.
- *A parameter is an `exp.Placeholder` whose `this` is its number as text, from "1"*, whether the user wrote
  `?` or `$1`. Numbers count from the left within one statement; `parameters` says how many values it takes.
  The values of a text with several statements are those of its first statement, then those of its second, and
  so on. A tree prints as DuckDB's own `$1` form.

`DEFAULT` as a value (in VALUES or after SET) is the tree for which `is_default` is true, and stands nowhere
else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType
from sqlglot import exp

from tablecast.model.change import Op
from tablecast.model.names import TableName as TableName
from tablecast.model.pipeline import InputKind, PipelineMode, PipelineOptions
from tablecast.model.position import Start
from tablecast.model.schema import AccessLevel, Column, Role, TableKind
from tablecast.model.spark_job import SparkJob
from tablecast.model.topic import PayloadMode


@dataclass(frozen=True, slots=True)
class Statement:
    parameters: int = field(default=0, kw_only=True)


# --- namespaces and tables ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateNamespace(Statement):
    name: str
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropNamespace(Statement):
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class CreateTable(Statement):
    """`checks` is SQL text; primary key columns are NOT NULL whether or not it was written."""

    table: TableName
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    checks: tuple[str, ...] = ()
    kind: TableKind = TableKind.SHARED
    ttl_seconds: int | None = None
    access_level: AccessLevel = AccessLevel.PRIVATE
    replicate: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropTable(Statement):
    table: TableName
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class AlterTableAddColumn(Statement):
    table: TableName
    column: Column
    checks: tuple[str, ...] = ()
    if_not_exists: bool = False


# --- topics and groups ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """What WITH or SET named; UNSET is "not named", None is NULL: no limit, no dead-letter topic."""

    retention_seconds: int | UnsetType | None = UNSET
    retention_max_bytes: int | UnsetType | None = UNSET
    dedup_window_seconds: int | UnsetType = UNSET
    max_deliveries: int | UnsetType = UNSET
    dead_letter: TableName | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class CreateTopic(Statement):
    """`alias` is text, as it is written: in quotes if it keeps its case."""

    topic: TableName
    alias: str | None = None
    partitions: int = 1
    options: TopicOptions = TopicOptions()
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AddSource(Statement):
    """`filter` and `partition_by` are the user's own text, parsed once to see that they are expressions."""

    topic: TableName
    table: TableName
    ops: tuple[Op, ...]
    filter: str | None = None
    partition_by: str | None = None
    payload: PayloadMode = PayloadMode.FULL
    backfill: bool = False


@dataclass(frozen=True, slots=True)
class DropSource(Statement):
    """Without `ON`, `ops` is every op: all sources of the table go."""

    topic: TableName
    table: TableName
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class SetTopic(Statement):
    topic: TableName
    options: TopicOptions


@dataclass(frozen=True, slots=True)
class RenameTopic(Statement):
    """Without a namespace, `to` stays in the topic's own."""

    topic: TableName
    to: TableName


@dataclass(frozen=True, slots=True)
class SetAlias(Statement):
    topic: TableName
    alias: str | None


@dataclass(frozen=True, slots=True)
class DropTopic(Statement):
    topic: TableName
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ClearTopic(Statement):
    topic: TableName


@dataclass(frozen=True, slots=True)
class Consume(Statement):
    topic: TableName
    group: str | None = None
    start: Start | None = None
    partition: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Ack(Statement):
    """Either cumulative (`upto`) or of single messages (`offsets`); the other one is None or empty."""

    topic: TableName
    group: str
    partition: int | None = None
    upto: int | None = None
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Nack(Statement):
    topic: TableName
    group: str
    offsets: tuple[int, ...]
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Redrive(Statement):
    """`offset` None is ALL."""

    topic: TableName
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ResetGroup(Statement):
    topic: TableName
    group: str
    to: Start
    partition: int | None = None


# --- pipelines ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedInput:
    """`TOPIC name` or `TABLE name` in a pipeline's query; `view` is what stands in its place."""

    kind: InputKind
    name: TableName
    view: str


@dataclass(frozen=True, slots=True)
class CreatePipeline(Statement):
    """`query` is the user's own text with the inputs replaced by their views; `tree` is what is checked of it."""

    name: TableName
    target: TableName
    mode: PipelineMode
    query: str
    inputs: tuple[NamedInput, ...]
    tree: exp.Query = field(repr=False, compare=False)
    options: PipelineOptions
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class StartPipeline(Statement):
    name: TableName
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class StopPipeline(Statement):
    name: TableName
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropPipeline(Statement):
    name: TableName
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowPipelines(Statement):
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class DescribePipeline(Statement):
    name: TableName


@dataclass(frozen=True, slots=True)
class RunOnSpark(Statement):
    """COPY, AUDIT or a backfill on Spark; the names in it are as they were written."""

    job: SparkJob


# --- looking around, transactions, users ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShowNamespaces(Statement):
    pass


@dataclass(frozen=True, slots=True)
class ShowTables(Statement):
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ShowTopics(Statement):
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Describe(Statement):
    table: TableName


@dataclass(frozen=True, slots=True)
class DescribeTopic(Statement):
    topic: TableName


@dataclass(frozen=True, slots=True)
class CancelJob(Statement):
    name: str


@dataclass(frozen=True, slots=True)
class Begin(Statement):
    pass


@dataclass(frozen=True, slots=True)
class Commit(Statement):
    pass


@dataclass(frozen=True, slots=True)
class Rollback(Statement):
    pass


@dataclass(frozen=True, slots=True)
class ExecuteAs(Statement):
    """`parameters` is the sum over `statements`, whose own parameters each count from 1."""

    user: str
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class CreateUser(Statement):
    name: str
    password: str = field(repr=False)
    role: Role = Role.USER
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterUser(Statement):
    """Exactly one of `password` and `role` is given."""

    name: str
    password: str | None = field(default=None, repr=False)
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class DropUser(Statement):
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class GrantRole(Statement):
    role: Role
    user: str


# --- rows -----------------------------------------------------------------------------------------------


def is_default(expression: exp.Expr) -> bool:
    return isinstance(expression, exp.Var) and expression.name == "DEFAULT"


@dataclass(frozen=True, slots=True)
class Output:
    """One item of RETURNING; `*` is an `exp.Star` named "*"."""

    expression: exp.Expr
    name: str


@dataclass(frozen=True, slots=True)
class Assignment:
    column: str
    value: exp.Expr


@dataclass(frozen=True, slots=True)
class OnConflict:
    """Without `assignments` it is DO NOTHING. `columns` None: none were named, the primary key is meant.

    `excluded.x` in a tree is the row that was to be inserted, a bare column the row in the table.
    """

    columns: tuple[str, ...] | None
    assignments: tuple[Assignment, ...] = ()
    where: exp.Expr | None = None


@dataclass(frozen=True, slots=True)
class Select(Statement):
    """A query. `tables` are the tables it reads, without its CTEs.

    `simple`: one table, no join, grouping, aggregate, window, subquery, CTE, DISTINCT or set operation, so
    that each result row comes from one row. `names_seq`: it mentions `_seq`, which `*` alone must not show.
    """

    query: exp.Query
    tables: frozenset[TableName]
    simple: bool
    names_seq: bool


@dataclass(frozen=True, slots=True)
class Insert(Statement):
    """Either `rows` or `query` is given. `columns` None: all of the table's, in order.

    `INSERT … DEFAULT VALUES` is one row of no columns. `reads` are the tables of subqueries and of `query`.
    """

    table: TableName
    columns: tuple[str, ...] | None
    rows: tuple[tuple[exp.Expr, ...], ...] | None
    query: Select | None = None
    on_conflict: OnConflict | None = None
    returning: tuple[Output, ...] | None = None
    reads: frozenset[TableName] = frozenset()


@dataclass(frozen=True, slots=True)
class Update(Statement):
    """Columns of the target are bare outside subqueries; inside them they are as the user wrote them."""

    table: TableName
    assignments: tuple[Assignment, ...]
    where: exp.Expr | None = None
    returning: tuple[Output, ...] | None = None
    reads: frozenset[TableName] = frozenset()


@dataclass(frozen=True, slots=True)
class Delete(Statement):
    """As `Update`."""

    table: TableName
    where: exp.Expr | None = None
    returning: tuple[Output, ...] | None = None
    reads: frozenset[TableName] = frozenset()
