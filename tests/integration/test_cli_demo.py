"""`tablecast demo`: what it shows is what happened, with and without Spark, at a terminal and not."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from cli_fixture import Terminals, program, run

import tablecast
from tablecast.cli import demo_spark

# Where no Java is found, whatever this machine has.
WITHOUT_JAVA = """
import tablecast.spark.java as java
java._USUAL = ()
java._candidates = lambda environment: iter(())
from tablecast.cli import main
main()
"""


def without_java(*args: object) -> list[str]:
    return [sys.executable, "-c", WITHOUT_JAVA, "demo", "--seconds", "0.5", *map(str, args)]


def played(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(without_java(*args), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def test_without_java_it_does_the_rest_and_says_what_to_install(tmp_path: Path) -> None:
    done = played("--data", tmp_path / "demo")
    assert (done.returncode, done.stderr) == (0, "")
    [missing] = [line for line in done.stdout.splitlines() if line.startswith("without Spark: ")]
    assert "apt-get install" in missing
    counts = re.findall(
        r"^\s+(group 'billing'|live query)\s+([\d,]+)\s+([\d,]+)\s+100\.0%\s+1\.00\s*$", done.stdout, re.M
    )
    assert [reader for reader, *_ in counts] == ["group 'billing'", "live query"]
    with tablecast.open(tmp_path / "demo" / "db") as db:
        orders = db.query("SELECT count(*) FROM shop.orders").scalar()
        assert {int(n.replace(",", "")) for _, *written in counts for n in written} == {orders}
        assert db.query("SELECT sum(lag) FROM system.topic_groups").scalar() == 0


def test_without_pyspark_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tablecast.spark.java", None)
    missing = demo_spark.why_not_on_spark()
    assert missing is not None
    assert "pip install 'tablecast[spark]'" in missing


def test_the_one_command_it_names_opens_the_same_data(tmp_path: Path) -> None:
    said = played("--data", tmp_path / "demo").stdout
    again = re.search(r"To look at it: (.*)", said)
    password = re.search(r"Sign in as system with the password (\S+)", said)
    assert again is not None and password is not None
    command = [*shlex.split(again[1]), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(line for line in server.stdout if "listening on" in line).split()[-1]
            with tablecast.connect(address, user="system", password=password[1]) as client:
                assert client.query("SELECT count(*) FROM shop.orders").scalar() > 0
        finally:
            server.terminate()


def test_at_a_terminal_the_server_stays_until_ctrl_c(tmp_path: Path) -> None:
    with Terminals() as terminals:
        terminal = terminals.run(without_java("--data", tmp_path / "demo"))
        terminal.expect("The console is at ")
        address = terminal.expect(" until Ctrl-C")
        password = terminal.expect("\n").split()[-1]
        with urllib.request.urlopen(address) as page:
            assert page.status == 200
        with tablecast.connect(address.rstrip("/"), user="system", password=password) as client:
            assert client.query("SELECT count(*) FROM shop.orders").scalar() > 0
            with client.live("SELECT id FROM shop.orders") as orders:  # some go on being written
                assert next(change for change in orders if not change.initial).row is not None
        terminal.type("\x03")
        code, said = terminal.end()
    assert (code, "Traceback" in said) == (0, False)
    with tablecast.open(tmp_path / "demo" / "db") as db:  # nobody has it open
        assert db.verify().sound


def test_a_place_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo" / "db").mkdir(parents=True)
    done = run("demo", "--data", tmp_path / "demo")
    assert done.returncode == 1
    assert "holds a demo already" in done.stderr
    assert list((tmp_path / "demo").iterdir()) == [tmp_path / "demo" / "db"]


def test_all_of_it_on_spark(tmp_path: Path) -> None:
    command = program("demo", "--data", tmp_path / "demo", "--seconds", "1", "--no-keep")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("100.0%") == 4
    assert "AUDIT shop.order_events: sound" in done.stdout
    assert table(done.stdout.split("once\n")[-1]) == table(shown_by_the_readme())


def shown_by_the_readme() -> str:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    return text.split("<!-- output of the demo -->\n```text\n")[1].split("```")[0]


def table(text: str) -> list[list[str]]:
    """Its lines as cells. Of counts it is enough that there is one."""
    lines = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    counted = [[re.sub(r"^[\d,]+$", "n", cell) for cell in cells] for cells in lines]
    return [cells for cells in counted if cells[0] == "reader" or cells[-1] == "1.00"]
