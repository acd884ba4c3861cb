"""What a live query tells: changes, and the steps in which they come."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tablecast.model.change import Op

Values = tuple[Any, ...]


class LiveChange(msgspec.Struct, frozen=True):
    """One row that came, changed or went, as of commit `seq`.

    `key` are the values of the primary key, `row` those of the selected columns, None for a delete. The rows that were
    there at the beginning come as inserts with `initial`. `reset` stands alone: what was told before no longer counts,
    because the server could not tell what was missed; the rows come again, as initial ones.
    """

    op: Op | None
    key: Values
    row: Values | None
    seq: int
    initial: bool = False
    reset: bool = False


class LiveStep(NamedTuple):
    """What moves a reader from one state to the next: a batch of initial rows, or all changes of one commit.

    After it the reader's rows are those of commit `seq`, if they are `whole`: initial rows are with their last batch.
    """

    changes: list[LiveChange]
    seq: int
    whole: bool


def reset_step(seq: int) -> LiveStep:
    return LiveStep([LiveChange(None, (), None, seq, reset=True)], seq, False)
