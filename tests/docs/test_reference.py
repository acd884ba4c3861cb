"""The reference is whole and true: what the program has, the pages name, as it is.

Settings are compared in tests/unit/test_settings.py, metrics in tests/unit/test_dashboard.py, errors and limits in
`test_docs.py`, calls over HTTP in `test_http_page.py`, what nodes say over MQTT in `test_mqtt_page.py`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import PAGES, ROOT, Block, blocks, name_of, table_rows

import tablecast
from tablecast.codec.events import MAX_KEY_BYTES, MAX_VALUE_BYTES
from tablecast.engine.system import SYSTEM_TABLES
from tablecast.engine.writer import QUEUE_COMMANDS, QUEUE_WAIT_SECONDS
from tablecast.server.settings import Settings

sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tools"))
import commands_page
import websocket_page
from bench.figures import FIGURE, RESULTS, row, with_figures
from bench.verdict import lost

DOCS = ROOT / "docs"
ALERTS = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"][0]["rules"]


# --- pages that are made ----------------------------------------------------------------------------------------------


def test_every_command_and_flag_is_on_its_page() -> None:
    """If it fails: `python tools/commands_page.py` writes the page anew."""
    assert (DOCS / "commands.md").read_text() == commands_page.page()


def test_the_websocket_page_says_what_the_document_says() -> None:
    """If it fails: `python tools/websocket_page.py` writes the page anew."""
    document = yaml.safe_load((DOCS / "live.asyncapi.yaml").read_text())
    assert (DOCS / "websocket.md").read_text() == websocket_page.page(document)


@pytest.mark.parametrize("page", [page for page in PAGES if FIGURE.search(page.read_text())], ids=name_of)
def test_figures_are_those_of_the_committed_runs(page: Path) -> None:
    """If it fails: `python -m bench.figures PAGE` writes them anew."""
    assert page.read_text() == with_figures(page.read_text())


def test_a_figure_that_no_run_has_is_noticed() -> None:
    with pytest.raises(SystemExit, match="has 0 rows"):
        with_figures("<!-- server; nothing; PostgreSQL; ours -->1")


def test_a_figure_of_a_run_that_failed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"there is no server\.json"):
        with_figures("<!-- server; nothing; PostgreSQL; ours -->1", tmp_path)


def compared() -> Iterator[tuple[str, dict[str, Any]]]:
    """The last cell of each row of the comparison that has figures, and what the run says of it."""
    for line in (DOCS / "comparison.md").read_text().splitlines():
        if line.startswith("|") and (figures := FIGURE.findall(line)):
            rows = {json.dumps(row(RESULTS, run, workload, against)) for _, run, workload, against, *_ in figures}
            assert len(rows) == 1, f"one row, one comparison: {line}"
            yield figures[-1][-1], json.loads(rows.pop())


def test_the_comparison_has_every_row_that_tablecast_loses_and_says_so() -> None:
    """If it fails after a run: add what is missing to docs/comparison.md, `python -m bench.figures` writes its figures."""
    told = [(found["workload"], found["against"]) for said, found in compared() if said == "**loses**"]
    committed = json.loads((RESULTS / "all.json").read_text())
    assert sorted(told) == sorted((found["workload"], found["against"]) for found in lost(committed))


def test_what_all_callers_share_is_said_where_it_counts() -> None:
    """Single-row writes of one client beside a connection per caller."""
    for section in (DOCS / "comparison.md").read_text().split("\n## "):
        if "24 callers, single-row durable writes" in section:
            assert "those of one client for all callers](#how-it-was-measured)" in section, section.splitlines()[0]


# --- system tables ----------------------------------------------------------------------------------------------------


REMARK = re.compile(r"\([^)]*\)|:.*")


def documented_tables() -> dict[str, list[str]]:
    """Table → its columns, those of the key in bold, without what is said of them in brackets or after a colon."""
    found = {}
    for cells in table_rows(DOCS / "sql.md"):
        if len(cells) == 3 and (name := re.fullmatch(r"`system\.(\w+)`", cells[0])):
            found[name[1]] = [column.strip() for column in REMARK.sub("", cells[2]).split(",")]
    return found


def test_every_system_table_is_documented_with_its_columns() -> None:
    with tablecast.open(":memory:") as db:
        real = {name: list(db.query(f"SELECT * FROM system.{name}").columns) for name in SYSTEM_TABLES}
    assert {name: [each.strip("*") for each in columns] for name, columns in documented_tables().items()} == real


def test_the_key_of_a_system_table_is_in_bold() -> None:
    bold = {name: {each.strip("*") for each in columns if "*" in each} for name, columns in documented_tables().items()}
    assert bold == {name: set(table.schema.primary_key) for name, table in SYSTEM_TABLES.items()}


# --- alerts -----------------------------------------------------------------------------------------------------------


def test_every_alert_is_explained() -> None:
    rules = {rule["alert"]: rule["labels"]["severity"] for rule in ALERTS}
    assert len(rules) == len(ALERTS)
    told = {
        cells[0].strip("`"): cells[1]
        for cells in table_rows(DOCS / "operations.md")
        if len(cells) == 4 and cells[0].startswith("`Tablecast")
    }
    assert told == rules


def test_an_alert_has_what_somebody_who_is_woken_needs() -> None:
    for rule in ALERTS:
        assert rule["annotations"]["summary"]
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))


# --- JSON -------------------------------------------------------------------------------------------------------------

COMPARED_ELSEWHERE = {"docs/http.md", "docs/websocket.md"}  # and whatever is in docs/formats


def json_blocks() -> Iterator[tuple[Path, Block]]:
    for page in PAGES:
        if name_of(page) not in COMPARED_ELSEWHERE and page.parent.name != "formats":
            yield from ((page, block) for block in blocks(page) if block.language == "json")


def test_json_is_json_and_says_what_the_program_says() -> None:
    """Beside the calls of HTTP there are three kinds: a log line, a reject of COPY, a dead letter of a pipeline."""
    fields: dict[str, set[str]] = {name_of(page): set(json.loads(block.text)) for page, block in json_blocks()}
    assert fields == {
        "docs/observability.md": {"timestamp", "level", "logger", "message", "request_id", "user", "fields"},
        "docs/copy.md": {"file", "column", "code", "reason", "row"},
        "docs/pipelines.md": {"_table", "_rejected", "row"},
    }


# --- numbers in prose -------------------------------------------------------------------------------------------------

SETTINGS = Settings()


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (
            "guarantees.md",
            f"| writes | {QUEUE_COMMANDS:,} commands wait | the caller waits up to {QUEUE_WAIT_SECONDS:g} s",
        ),
        ("guarantees.md", f"| {MAX_KEY_BYTES} B of key, {MAX_VALUE_BYTES // 2**10} KiB of value |"),
        ("operations.md", f"| up to {SETTINGS.query_memory_mb} MB, beside that | `query_memory_mb` |"),
        ("operations.md", f"| up to {SETTINGS.live_buffer_bytes // 2**20} MiB | `live_buffer_bytes` |"),
        ("operations.md", f"| {SETTINGS.max_body_bytes // 10**6} MB; {SETTINGS.max_result_rows:,} rows |"),
        ("operations.md", f"({SETTINGS.changes_max_bytes // 2**20} MiB per\ntable at most)"),
    ],
)
def test_numbers_in_prose_are_those_of_the_code(page: str, said: str) -> None:
    assert said in (DOCS / page).read_text()
