"""What a request with an idempotency key may hold: it is one transaction, whether it says so with BEGIN and COMMIT or not."""

from __future__ import annotations

from collections.abc import Sequence

from tablecast.errors import InvalidRequest
from tablecast.sql import statements as s


def without_control(parsed: Sequence[s.Statement]) -> Sequence[s.Statement]:
    """The statements between BEGIN and COMMIT, or all of them if there are neither."""
    if len(parsed) > 1 and isinstance(parsed[0], s.Begin) and isinstance(parsed[-1], s.Commit):
        parsed = parsed[1:-1]
    for statement in parsed:
        inner = statement.statements if isinstance(statement, s.ExecuteAs) else (statement,)
        if not all(isinstance(each, s.Insert | s.Update | s.Delete | s.Select) for each in inner):
            raise InvalidRequest(
                "an idempotency key goes with INSERT, UPDATE, DELETE and SELECT only, "
                "also between BEGIN and COMMIT and in EXECUTE AS USER"
            )
    return parsed


def only_reads(statement: s.Statement) -> bool:
    if isinstance(statement, s.ExecuteAs):
        return all(only_reads(inner) for inner in statement.statements)
    return isinstance(statement, s.Select)
