"""The documentation, run: what it shows is what happens.

- Python blocks of a page run in order and share names; `sql` blocks run on the page's `db` (one in memory if the page
  opens none).
- A statement of an `sql` block whose last line ends in `-- error: code` must be refused with that code.
- A `text` block under `<!-- output -->` is what the block before it prints, or the rows of its last statement; `…`
  stands for any text within a line.
- Blocks under `<!-- server -->` belong together: `test_readme_server.py` runs them.
- Blocks with other marks run elsewhere: which, and where, is pinned below. `test_commands.py` runs `sh` and `console` blocks.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import pkgutil
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pages import PAGES, ROOT, RUN, Block, anchors, blocks, links, name_of, table_rows

import tablecast
from tablecast.cli.app import app
from tablecast.codec.result import Result
from tablecast.errors import TablecastError
from tablecast.sql.parse import parse

ELSEWHERE = re.compile(r".*server|with a broker")  # marks of blocks that tests/spark and tests/edge run
RUN_HERE = {"python", "sql"}
CHECKED = {
    *RUN_HERE,
    "sh",  # test_commands.py
    "console",
    "json",  # test_http_page.py, test_reference.py
    "hex",  # tests/unit/test_format_docs.py
    "text",  # outputs; else pictures and grammar
}
TEXT_MARKS = {
    "output",  # above
    "output of the server",  # test_readme_server.py
    "output of the demo",  # tests/integration/test_cli_demo.py
    "event of a commit",  # test_http_page.py
    "configuration of mosquitto",  # tests/edge/test_docs_edge.py
}
ONLY_READ = {  # text that nothing runs: how many blocks, and what they are
    "docs/ARCHITECTURE.md": (2, "pictures"),
    "docs/copy.md": (3, "grammar, and a listing of files"),
    "docs/pipelines.md": (2, "grammar"),
    "docs/sql.md": (22, "grammar"),
    "docs/formats/group-state.md": (4, "a picture, a layout, and examples of it"),  # tests/unit/test_format_docs.py
    "docs/formats/loads.md": (1, "a listing of files"),
    "docs/formats/storage.md": (1, "a listing of files"),
}
EXPECTED_ERROR = re.compile(r"--\s*error: (\w+)\s*$")
OTHER_COMMANDS = {"pip"}


# --- blocks -----------------------------------------------------------------------------------------------------


class Page:
    """A page while it runs: its names, its database, and what was said last."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "docs"}
        self.said = ""

    def run(self, block: Block) -> None:
        if block.language == "python":
            self._run_python(block)
        elif block.language == "sql":
            self._run_sql(block)
        elif block.mark == "output":
            assert_said(self.said, block)

    def _run_python(self, block: Block) -> None:
        printed = io.StringIO()
        code = compile("\n" * block.line + block.text, "<block>", "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(code, self.names)
        self.said = printed.getvalue()

    def _run_sql(self, block: Block) -> None:
        db = self.names.setdefault("db", None) or self._open()
        for statement, code in statements(block.text):
            if code is None:
                self.said = shown(db.execute(statement))
                continue
            with pytest.raises(TablecastError) as caught:
                db.execute(statement)
            assert caught.value.code == code, f"{statement}\n-> {caught.value.code}: {caught.value}"

    def _open(self) -> tablecast.Database:
        self.names["db"] = tablecast.open(":memory:")
        return self.names["db"]

    def close(self) -> None:
        db = self.names.get("db")
        if isinstance(db, tablecast.Database):
            db.close()


def statements(text: str) -> list[tuple[str, str | None]]:
    """(statement, the code it is to be refused with). A statement ends with a line that ends in a semicolon."""
    found, lines = [], []
    for line in text.splitlines():
        lines.append(line)
        if line.split("--")[0].rstrip().endswith(";"):
            error = EXPECTED_ERROR.search(line)
            found.append(("\n".join(lines), error[1] if error else None))
            lines = []
    assert not "".join(lines).strip(), f"a statement without its semicolon: {lines}"
    return found


def shown(result: Result) -> str:
    rows = [result.columns, *result.rows]
    return "".join(" | ".join(str(value) for value in row) + "\n" for row in rows)


def assert_said(said: str, block: Block) -> None:
    pattern = ".*".join(re.escape(part) for part in block.text.split("…"))
    literal = re.escape(block.text)
    assert re.fullmatch(literal, said) or re.fullmatch(pattern, said), f"line {block.line}: it said\n{said}"


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_blocks_run_and_say_what_is_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    running = Page()
    try:
        for block in blocks(page):
            if not ELSEWHERE.fullmatch(block.mark):
                running.run(block)
    finally:
        running.close()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_program_is_left_out(page: Path) -> None:
    """Commands may be, for a reason that `test_commands.py` knows."""
    assert [b.line for b in blocks(page) if b.language in RUN_HERE and b.mark.startswith("not run")] == []


def test_what_runs_elsewhere_is_where_it_runs() -> None:
    marks = {(name_of(page), b.mark) for page in PAGES for b in blocks(page) if ELSEWHERE.fullmatch(b.mark)}
    assert marks == {
        ("README.md", "server"),  # test_readme_server.py
        ("README.md", "output of the server"),
        ("docs/copy.md", "with Spark and a server"),  # tests/spark/test_docs_spark.py
        ("docs/spark.md", "with Spark and a server"),
        ("docs/edge.md", "with a broker"),  # tests/edge/test_docs_edge.py
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_kind_that_is_checked(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= CHECKED


def test_text_that_nothing_checks_is_known() -> None:
    """What a program says has a mark; else it is a picture or grammar, and its page is in the list."""
    texts = [(name_of(page), block.mark) for page in PAGES for block in blocks(page) if block.language == "text"]
    assert {mark for _, mark in texts} <= {*TEXT_MARKS, ""}
    unmarked = Counter(page for page, mark in texts if not mark)
    assert unmarked == {page: count for page, (count, _) in ONLY_READ.items()}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_sql_parses(page: Path) -> None:
    for block in blocks(page):
        if block.language == "sql":
            for statement, code in statements(block.text):
                if code is None:
                    assert parse(statement)


# --- links ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_every_page_is_listed_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    assert [name_of(page) for page in (ROOT / "docs").glob("*.md") if page != index and page not in listed] == []


def test_tests_that_pages_name_exist() -> None:
    """Files and folders, and functions written as `tests/folder/test_file.py::test_name`."""
    named = {name for page in PAGES for name in re.findall(r"`(tests/[\w/.]+(?:::\w+)?)`", page.read_text())}
    assert len(named) > 30
    assert [name for name in sorted(named) if not _is_a_test(name)] == []


def _is_a_test(name: str) -> bool:
    path, _, function = name.partition("::")
    return (ROOT / path).exists() and (not function or f"def {function}(" in (ROOT / path).read_text())


# --- errors and limits ------------------------------------------------------------------------------------------


def modules() -> list[str]:
    return [found.name for found in pkgutil.walk_packages(tablecast.__path__, "tablecast.")]


def error_classes() -> dict[str, type[TablecastError]]:
    """Every error of the package, by code."""
    for name in modules():
        importlib.import_module(name)
    found, waiting = {}, [TablecastError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__.startswith("tablecast."):
            found[kind.code] = kind
        waiting += kind.__subclasses__()
    return found


def documented_errors() -> dict[str, tuple[str, int, bool]]:
    """code -> class, status, whether a retry may help."""
    found = {}
    for cells in table_rows(ROOT / "docs" / "errors.md"):
        if len(cells) == 6 and cells[0].startswith("`"):
            code, name, status, retry = cells[:4]
            assert code.strip("`") not in found, f"{code} is documented twice"
            found[code.strip("`")] = name.strip("`"), int(status), retry == "yes"
    return found


def test_every_error_is_documented_as_it_is() -> None:
    expected = {code: (kind.__name__, kind.status, kind.retryable) for code, kind in error_classes().items()}
    assert documented_errors() == expected


def test_error_codes_that_pages_promise_exist() -> None:
    known = error_classes()
    for page in RUN:
        for block in blocks(page):
            if block.language == "sql":
                assert {code for _, code in statements(block.text) if code} <= known.keys()


def value_of(name: str) -> Any:
    """`module.CONSTANT`, or `function(parameter)` for a parameter's default."""
    call = re.fullmatch(r"([\w.]+)\((\w+)\)", name)
    path = call[1] if call else name
    module, _, attribute = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError:
        module, _, owner = module.rpartition(".")
        found = getattr(getattr(importlib.import_module(module), owner), attribute)
    return inspect.signature(found).parameters[call[2]].default if call else found


def documented_limits() -> dict[str, Decimal]:
    found = {}
    for cells in table_rows(ROOT / "docs" / "limits.md"):
        name = re.fullmatch(r"`(tablecast\.[\w.]+(?:\(\w+\))?)`", cells[-1])
        if name:
            found[name[1]] = Decimal(cells[1].replace(",", ""))
    return found


LIMITS = documented_limits()


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_what_the_code_says(name: str) -> None:
    assert value_of(name) == LIMITS[name]


def maxima() -> set[str]:
    """Every constant of the package that is called MAX_…, where it is defined."""
    found = set()
    for file in (ROOT / "src" / "tablecast").rglob("*.py"):
        parts = file.relative_to(ROOT / "src").with_suffix("").parts
        if parts[1] in ("cli", "testing"):
            continue
        for node in ast.parse(file.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found |= {".".join((*parts, name)) for name in names if name.startswith("MAX_")}
    return found


def test_every_maximum_is_documented() -> None:
    assert maxima() - LIMITS.keys() == set()


# --- commands ---------------------------------------------------------------------------------------------------


def shell_lines(page: Path) -> list[str]:
    found = [block.text for block in blocks(page) if block.language == "sh"]
    lines = [line for text in found for line in text.splitlines() if line and not line.startswith("#")]
    return [re.sub(r"^[A-Z_]+=('[^']*'|\S*) ", "", line) for line in lines]


def test_commands_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    lines = shell_lines(ROOT / "README.md")
    assert {"make demo", "make test"} <= set(lines)
    for line in lines:
        program, first, *_ = [*line.split(), "", ""]
        known = {"make": targets, "tablecast": commands}.get(program)
        assert program in OTHER_COMMANDS or (known is not None and first in known), line


def test_options_of_the_readme_exist() -> None:
    group = typer.main.get_command(app)
    for line in shell_lines(ROOT / "README.md"):
        program, command, *rest = [*line.split(), "", ""]
        if program == "tablecast":
            options = {name for p in group.commands[command].params for name in (*p.opts, *p.secondary_opts)}
            assert {word for word in rest if re.match(r"--?[a-z]", word)} <= options, line


# --- the architecture -------------------------------------------------------------------------------------------


def test_the_architecture_names_every_source_file() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    files = [file for file in (ROOT / "src" / "tablecast").rglob("*.py") if file.name != "__init__.py"]
    assert [str(file.relative_to(ROOT)) for file in files if f"`{file.name}`" not in text] == []


def test_the_architecture_names_what_exists() -> None:
    """Files, and functions written as `Class.method`."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    files = {file.name for file in (ROOT / "src" / "tablecast").rglob("*.py")}
    assert set(re.findall(r"`(\w+\.py)`", text)) - files == set()
    source = "\n".join(file.read_text() for file in (ROOT / "src" / "tablecast").rglob("*.py"))
    methods = re.findall(r"`([A-Z]\w+)\.(\w+)(?:\([^`]*\))?`", text)
    assert len(methods) > 5
    missing = [f"{c}.{m}" for c, m in methods if not re.search(rf"class {c}\b", source)]
    missing += [f"{c}.{m}" for c, m in methods if not re.search(rf"def {m}\(|self\.{m}\b", source)]
    assert missing == []
