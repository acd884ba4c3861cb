"""Names of tables, topics and pipelines: what a text means as a name, and how a name is written as text.

A name that comes as text (a field of a request, an argument of the SDK, an option of SQL, of the command line or of
Spark) is read as SQL reads an identifier: parts without quotes are folded to lower case, parts in double quotes keep
their case, and a name without a namespace is looked up in the caller's. Inside, a name is its full name: namespace, dot,
name, as folded, without quotes. `spelled` turns a full name back into text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tablecast.errors import InvalidRequest

DEFAULT_NAMESPACE = "default"

_PART = r'\s*("(?:[^"]|"")+"|[^\s".]+)\s*'
_NAME = re.compile(rf"{_PART}(?:\.{_PART})?\Z")
_FOLDED = re.compile(r"[a-z_][a-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table or topic; without a namespace the session's own is meant. Prints as text that reads the same."""

    namespace: str | None
    name: str

    def __str__(self) -> str:
        bare = spelled_part(self.name)
        return bare if self.namespace is None else f"{spelled_part(self.namespace)}.{bare}"


def fold(word: str) -> str:
    """An identifier without quotes."""
    return word.lower()


def read_name(text: str) -> TableName:
    """What SQL cannot read as a name stays as it is, and so names nothing."""
    if not isinstance(text, str):
        raise InvalidRequest(f"a name is a text, not {type(text).__name__}")
    found = _NAME.match(text)
    if found is None:
        return TableName(None, text)
    first, second = found.groups()
    return TableName(None, _part(first)) if second is None else TableName(_part(first), _part(second))


def read_part(text: str) -> str:
    """A single identifier: the name of a namespace, or an alias."""
    found = _NAME.match(text)
    return text if found is None or found[2] is not None else _part(found[1])


def full_name(name: TableName, namespace: str) -> str:
    return f"{name.namespace or namespace}.{name.name}"


def full_name_of(text: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """The full name that a text stands for; `namespace` is text, too."""
    return full_name(read_name(text), read_part(namespace))


def spelled(full: str) -> str:
    """A full name as text, for whoever reads it with `read_name`."""
    namespace, dot, name = full.partition(".")
    return f"{spelled_part(namespace)}.{spelled_part(name)}" if dot else spelled_part(full)


def spelled_part(part: str) -> str:
    return part if _FOLDED.match(part) else '"' + part.replace('"', '""') + '"'


def _part(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else fold(text)
