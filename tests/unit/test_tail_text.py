"""A message as a line of `tablecast tail`: each kind of change has its colour."""

from __future__ import annotations

import pytest
from rich.style import Style

import tablecast
from tablecast.cli.tail_text import as_text
from tablecast.model.change import Op
from tablecast.model.message import Message
from tablecast.model.position import EARLIEST


@pytest.fixture(scope="module")
def messages() -> dict[Op, Message]:
    with tablecast.open(":memory:") as db:
        db.execute(
            "CREATE USER TABLE t (id INT PRIMARY KEY, v TEXT); CREATE TOPIC seen; ALTER TOPIC seen ADD SOURCE t ON ANY"
        )
        db.session("ann").execute(
            "INSERT INTO t VALUES (1, 'a\x1b[31mb'); UPDATE t SET v = 'c' WHERE id = 1; DELETE FROM t WHERE id = 1"
        )
        return {message.op: message for message in db.consume("seen", start=EARLIEST, limit=10).messages}


def styles(message: Message) -> dict[str, Style]:
    """The style of each part of the line, by its text."""
    line = as_text(message)
    return {line.plain[span.start : span.end].strip(): Style.parse(str(span.style)) for span in line.spans}


@pytest.mark.parametrize(("op", "colour"), [(Op.INSERT, "green"), (Op.UPDATE, "yellow"), (Op.DELETE, "red")])
def test_the_op_is_coloured_and_nothing_else_by_it(messages: dict[Op, Message], op: Op, colour: str) -> None:
    found = styles(messages[op])
    word = found.pop(op.label)
    assert word.color is not None
    assert (word.color.name, word.bold) == (colour, True)
    assert all(style.color is None or style.color.name == "cyan" for style in found.values())


def test_the_user_is_told_apart_and_control_characters_are_written_out(messages: dict[Op, Message]) -> None:
    found = styles(messages[Op.INSERT])
    assert found["ann"].color is not None
    assert found["ann"].color.name == "cyan"
    assert "\x1b" not in as_text(messages[Op.INSERT]).plain
