"""Every command of the README and the docs is run as it is written (`commands.py` says how), or stands in a list with the
reason why it is not: the list cannot grow in silence.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import Step, Terminal, assert_shown, commands, steps, typed
from pages import PAGES, Block, name_of

import tablecast

ON_SPARK = {"docs/copy.md"}  # tests/spark/test_docs_spark.py

NOT_RUN = {
    ("README.md", "not run: the second command is what runs this; the first is tested by itself"): 1,
    ("docs/benchmarks.md", "not run: measures for the better part of an hour"): 1,
    ("docs/comparison.md", "not run: measures for minutes, and fails if the machine is slow"): 1,
    ("docs/operations.md", "not run: measures for minutes, and fails if the machine is slow"): 1,
    ("docs/soak.md", "not run: takes half an hour"): 1,
    ("docs/spark.md", "not run: installs packages"): 1,
}

SHOP = """
CREATE NAMESPACE shop;
CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, customer TEXT);
CREATE TOPIC shop.order_events;
ALTER TOPIC shop.order_events ADD SOURCE shop.orders ON ANY;
INSERT INTO shop.orders VALUES (1, 'ann');
"""
PREPARED = {"README.md": SHOP}  # what ./shop holds where a page begins in the middle


WITH_COMMANDS = [page for page in PAGES if commands(page)]


@pytest.mark.parametrize("page", [page for page in WITH_COMMANDS if name_of(page) not in ON_SPARK], ids=name_of)
def test_commands_do_what_is_shown(page: Path, tmp_path: Path) -> None:
    if shutil.which("curl") is None and any(step.command.startswith("curl ") for step in typed(page)):
        pytest.skip("curl is not installed")
    if name_of(page) in PREPARED:
        with tablecast.open(tmp_path / "shop") as db:
            db.execute(PREPARED[name_of(page)])
    with Terminal(tmp_path) as terminal:
        for step in typed(page):
            terminal.run(step)


def test_what_is_not_run_is_known() -> None:
    found: dict[tuple[str, str], int] = {}
    for page in PAGES:
        for block in commands(page):
            if block.mark.startswith("not run"):
                place = name_of(page), block.mark
                found[place] = found.get(place, 0) + 1
    assert found == NOT_RUN


# --- the reader of commands -------------------------------------------------------------------------------------------


def test_a_console_block_is_commands_with_what_they_say() -> None:
    block = Block("console", "$ one \\\n  two\nsaid\n\nmore\n$ three\n", 1, "")
    assert steps(block) == [Step("one    two", "said\n\nmore\n"), Step("three", "")]


def test_another_output_is_noticed(tmp_path: Path) -> None:
    assert_shown(Step("x", "a … c\n"), "a b c\n")
    for said in ("a b d\n", "a b c\nmore\n", ""):
        with pytest.raises(AssertionError):
            assert_shown(Step("x", "a … c\n"), said)


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal, pytest.raises(AssertionError, match="ended with 1"):
        terminal.run(Step("tablecast verify ./nothing", None))
