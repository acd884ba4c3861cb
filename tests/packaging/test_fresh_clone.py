"""The first minutes of somebody new: a clone, `make demo`, and the console with data in it.

Installs all packages into an environment of its own: `make test-wheel`.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))  # for cli_fixture
sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))  # for console_stage
from cli_fixture import Terminals
from console_stage import Console, browser
from playwright.sync_api import expect, sync_playwright
from server_fixture import Address

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
INSTALL_SECONDS = 1200.0  # pyspark alone is 400 MB


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_demo_ends_with_a_console_that_shows_what_happened(tmp_path: Path) -> None:
    clone = tmp_path / "tablecast"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    with Terminals() as terminals, sync_playwright() as playwright, browser(playwright) as running:
        terminal = terminals.run(["make", "-C", str(clone), "demo"], PYTHONPATH="", PYTHON=sys.executable)
        terminal.PATIENCE_SECONDS = INSTALL_SECONDS
        counted = terminal.expect("The console is at ")
        assert counted.count("100.0%") >= 2, counted
        address = terminal.expect(" until Ctrl-C").rstrip("/")
        password = terminal.expect("\n").split()[-1]
        console = Console(running.new_page(), Address(int(address.rpartition(":")[2])))
        console.sign_in(password=password)
        for grid, name in (("Topics", "shop.order_events"), ("Groups", "billing")):
            row = console.page.get_by_role("grid", name=grid).get_by_role("row").filter(has_text=name)
            expect(row).to_be_visible()
        messages = console.page.get_by_role("grid", name="Topics").get_by_role("gridcell").nth(2)
        assert int(messages.inner_text().replace(",", "")) > 0
        console.wait_for_ink("Writes", "plot-3")  # of the orders that go on being written
        assert console.complaints == []
        terminal.type("\x03")
        code, said = terminal.end()
    assert "Traceback" not in said
    assert code in (0, 2, -signal.SIGINT), said  # make ends as it was told to, whatever its recipe did
