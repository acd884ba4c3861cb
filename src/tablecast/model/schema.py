"""Tables and their columns."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class TypeName(enum.StrEnum):
    BOOLEAN = "BOOLEAN"
    SMALLINT = "SMALLINT"
    INT = "INT"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    TEXT = "TEXT"
    BYTES = "BYTES"
    JSON = "JSON"
    TIMESTAMP = "TIMESTAMP"
    DATE = "DATE"
    TIME = "TIME"
    UUID = "UUID"


class ColumnType(msgspec.Struct, frozen=True):
    """A column's type; precision and scale only for DECIMAL."""

    name: TypeName
    precision: int = 0
    scale: int = 0

    @classmethod
    def of(cls, text: str) -> ColumnType:
        """The reverse of `str`."""
        name, _, digits = text.rstrip(")").partition("(")
        return cls(TypeName(name), *map(int, digits.split(","))) if digits else cls(TypeName(name))

    def __str__(self) -> str:
        if self.name is TypeName.DECIMAL:
            return f"DECIMAL({self.precision},{self.scale})"
        return self.name.value


class DefaultKind(enum.StrEnum):
    LITERAL = "literal"
    SNOWFLAKE_ID = "snowflake_id"
    UUID_V7 = "uuid_v7"
    NOW = "now"
    CURRENT_USER = "current_user"


class Default(msgspec.Struct, frozen=True):
    """What fills a column that a statement does not name. A literal is the value's text, cast to the column's type; BYTES,
    which have no text, are themselves."""

    kind: DefaultKind
    text: str | None = msgspec.field(default=None, name="literal")
    data: bytes | None = None

    @property
    def literal(self) -> str | bytes | None:
        return self.text if self.data is None else self.data


class Column(msgspec.Struct, frozen=True):
    name: str
    type: ColumnType
    not_null: bool = False
    default: Default | None = None


class TableKind(enum.StrEnum):
    SHARED = "SHARED"
    USER = "USER"
    STREAM = "STREAM"


class AccessLevel(enum.StrEnum):
    PUBLIC = "PUBLIC"
    PRIVATE = "PRIVATE"
    RESTRICTED = "RESTRICTED"


class TableSchema(msgspec.Struct, frozen=True):
    """One table. `table_id` is never reused; `version` grows by one with every ALTER.

    Columns are only ever appended, so a stored row of an older version is a prefix of the newer one.
    """

    table_id: int
    namespace: str
    name: str
    kind: TableKind
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    checks: tuple[str, ...] = ()
    ttl_seconds: int | None = None
    access_level: AccessLevel = AccessLevel.PRIVATE
    replicate: bool = False
    version: int = 1
    created_ms: int = 0

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def per_user(self) -> bool:
        """USER and STREAM tables keep each user's rows apart."""
        return self.kind is not TableKind.SHARED

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def index_of(self, column: str) -> int | None:
        for i, candidate in enumerate(self.columns):
            if candidate.name == column:
                return i
        return None

    def is_required(self, column: Column) -> bool:
        """Whether it may not be NULL."""
        return column.not_null or column.name in self.primary_key

    @property
    def key_indexes(self) -> tuple[int, ...]:
        names = self.column_names
        return tuple(names.index(name) for name in self.primary_key)


class Role(enum.IntEnum):
    """Ordered: a higher role may do all that a lower one may."""

    USER = 1
    SERVICE = 2
    DBA = 3
    SYSTEM = 4


class Actor(msgspec.Struct, frozen=True):
    """Who sends a statement."""

    user_id: str
    role: Role


SYSTEM_ACTOR = Actor("system", Role.SYSTEM)

# What one value of each type is in Python: bool, int, float, Decimal, str, bytes, aware UTC datetime, date, time,
# UUID. JSON is held as its text.
Value = Any
