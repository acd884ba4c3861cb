"""What a request may hold: a transaction ends with it, and with an idempotency key it is one transaction as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from tablecast.errors import InvalidRequest, TransactionState
from tablecast.sql import statements as s


def check_ended(parsed: Sequence[s.Statement]) -> None:
    """Refuses a text that would leave a transaction open: nobody could commit it, so nothing of the text is run."""
    begun: int | None = None
    for number, statement in enumerate(parsed, 1):
        if isinstance(statement, s.Begin):
            begun = number
        elif isinstance(statement, s.Commit | s.Rollback):
            begun = None
    if begun is not None:
        raise TransactionState(
            f"statement {begun} begins a transaction that the request does not end, so nothing of the request was run: "
            "end it with COMMIT or ROLLBACK, or use client.transaction() for one that spans several requests",
            statement=begun,
        )


def refuse_control(parsed: Sequence[s.Statement]) -> None:
    """For a text inside a transaction that is begun and ended by calls of their own."""
    for number, statement in enumerate(parsed, 1):
        if isinstance(statement, s.Begin | s.Commit | s.Rollback):
            verb = type(statement).__name__.upper()
            raise TransactionState(
                f"{verb} inside a transaction that calls of their own begin and end: use commit() or rollback()",
                statement=number,
            )


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
