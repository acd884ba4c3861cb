"""The command line as a whole: help, usage, targets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_fixture import invoke, plain, run, shop

import tablecast
from tablecast.cli.app import app
from tablecast.cli.target import Target


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return shop(tmp_path)


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tablecast {tablecast.__version__}\n", "")


def test_every_command_has_a_help_text_with_an_example() -> None:
    commands = [command.callback.__name__ for command in app.registered_commands if command.callback]
    assert commands == ["sql", "topics", "groups", "tail", "serve", "demo", "bench", "verify", "backup", "restore"]
    listed = plain(invoke("--help").stdout)
    for command in commands:
        shown = plain(invoke(command, "--help").stdout)
        assert f"Example: tablecast {command} " in shown
        assert f" {command} " in listed


@pytest.mark.parametrize("command", ["list", "add", "passwd", "role", "drop"])
def test_every_command_about_users_has_one_too(command: str) -> None:
    assert f"Example: tablecast user {command} " in plain(invoke("user", command, "--help").stdout)
    assert f" {command} " in plain(invoke("user", "--help").stdout)


def test_asking_for_help_loads_no_database() -> None:
    script = """
import sys, types
from importlib.util import find_spec
package = types.ModuleType("tablecast")  # the package's own names, which need everything, are not asked for
package.__path__ = find_spec("tablecast").submodule_search_locations
sys.modules["tablecast"] = package
from tablecast.cli import main
try:
    main()
finally:
    print(sorted({"aiohttp", "duckdb", "pyarrow", "numpy", "rocksdict", "sqlglot", "prompt_toolkit"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, timeout=60)
    assert "Usage: tablecast" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("args", "instead"),
    [
        (("restore", "https://db.example", "shop"), "restore into a new directory there, and start a server on that"),
        (("restore", "copy", "https://db.example"), "restore into a new directory there, and start a server on that"),
    ],
)
def test_what_works_on_files_says_what_to_do_with_a_server(args: tuple[str, ...], instead: str) -> None:
    done = invoke(*args)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"error [invalid_request]: {args[0]} works on files, not through a server: {instead}\n"


@pytest.mark.parametrize("option", ["--password-file", "--token", "--ca", "--user"])
@pytest.mark.parametrize("command", [("topics",), ("verify",), ("user", "list")], ids=" ".join)
def test_nobody_signs_in_at_a_local_database(command: tuple[str, ...], option: str, path: Path) -> None:
    done = invoke(*command, path, option, "x")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"error [invalid_request]: {option} goes with a server's address; {path} is a local path\n"


def test_a_target_shows_no_password() -> None:
    target = Target("https://ann:secret@db.example:7000/shop/", token="secret")
    assert (target.name, target.address) == ("db.example:7000", "https://db.example:7000/shop")
    assert Target("data/shop").name == "shop"
    assert "token" not in repr(target)


@pytest.mark.parametrize("command", ["topics", "groups", "verify"])
def test_looking_at_a_database_that_is_not_there_makes_none(command: str, tmp_path: Path) -> None:
    done = invoke(command, tmp_path / "nothing")
    assert done.exit_code == 1
    assert done.stderr == f"error [not_a_database]: there is no database at {tmp_path / 'nothing'}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        (("topics",), "give its address instead, e.g. http://127.0.0.1:8080"),
        (("sql", "-c", "SELECT 1"), "give its address instead, e.g. http://127.0.0.1:8080"),
        (("tail", "orders"), "give its address instead, e.g. http://127.0.0.1:8080"),
        (("verify",), "give its address instead, e.g. http://127.0.0.1:8080"),
        (("backup", "copy"), "give its address instead, e.g. http://127.0.0.1:8080"),
    ],
    ids=lambda value: value[0],
)
def test_a_database_that_another_process_has_open(command: tuple[str, ...], instead: str, path: Path) -> None:
    with tablecast.open(path):
        done = run(command[0], path, *command[1:])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error [database_locked]: {path} is open in another process; if a server has it open, {instead}\n"
    )
