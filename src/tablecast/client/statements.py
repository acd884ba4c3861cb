"""What a SQL text is, as far as a client has to know: may it be repeated, and may it travel with others' writes?

The server parses; this only looks at the first word of each statement, with strings, quoted names and comments taken
out. A wrong guess costs a round trip or a retry, never a different meaning: the server refuses what is not as promised.
"""

from __future__ import annotations

import enum
import re
from functools import lru_cache

from tablecast.errors import SqlSyntaxError

_OPAQUE = re.compile(
    r"""  [eE]'(?:[^'\\]|\\.)*'                     # a string with escapes
        | '[^']*'                                 # a string; '' inside of one looks like two of them
        | "[^"]*"                                 # a quoted name
        | \$([A-Za-z_]\w*)?\$.*?\$(?(1)\1|)\$     # a string between dollars
        | --[^\n]*
        | /\*.*?\*/
    """,
    re.VERBOSE | re.DOTALL,
)
_FIRST = re.compile(r"\s*(\(|\w+)")
_READS = frozenset({"SELECT", "WITH", "VALUES", "(", "SHOW", "DESCRIBE", "DESC"})
_WRITES = frozenset({"INSERT", "UPDATE", "DELETE"})
_OFTEN = _WRITES | {"SELECT"}
_DEFINE = frozenset(
    {"CREATE", "ALTER", "DROP", "CLEAR", "GRANT", "START", "STOP", "CANCEL", "COPY", "AUDIT", "EXECUTE"}
)
_CONTROL = frozenset({"BEGIN", "COMMIT", "ROLLBACK"})
_GROUPS = frozenset({"CONSUME", "ACK", "NACK", "REDRIVE", "RESET"})
REMEMBERED_CHARS = 4096


class Kind(enum.Enum):
    READ = "read"  # nothing but reads: may be repeated
    WRITE = "write"  # one INSERT, UPDATE or DELETE: may be repeated with a key, and travel with others
    OTHER = "other"  # definitions, transactions, several statements


def kind_of(sql: str) -> Kind:
    # What a program sends again and again is remembered; nothing long, and nothing that may hold a password.
    often = len(sql) <= REMEMBERED_CHARS and sql[:6].upper() in _OFTEN
    return _remembered(sql) if often else _looked_at(sql)


def _looked_at(sql: str) -> Kind:
    firsts = [found[1].upper() for part in _OPAQUE.sub(" ", sql).split(";") if (found := _FIRST.match(part))]
    if firsts and _READS.issuperset(firsts):
        return Kind.READ
    if len(firsts) == 1 and firsts[0] in _WRITES:
        return Kind.WRITE
    return Kind.OTHER


_remembered = lru_cache(maxsize=1024)(_looked_at)


def check_word(sql: str) -> None:
    """Refuses a text whose first word begins no statement."""
    found = _FIRST.match(_OPAQUE.sub(" ", sql))
    word = sql.strip()[:40] if found is None else found[1]
    if word.upper() not in _READS | _WRITES | _DEFINE | _CONTROL | _GROUPS:
        raise SqlSyntaxError(f"expected a statement such as SELECT, found {word or 'nothing'}")
