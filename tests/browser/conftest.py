"""Where the JavaScript client runs: pages of a real Chromium, and programs of node. And the console, in a tab of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))  # for server_fixture
sys.path.insert(0, str(Path(__file__).parents[1] / "edge"))  # for mqtt_broker
from chromium import Chromium
from console_stage import Console, browser
from node_stage import Node
from page_server import PageServer
from playwright.sync_api import Browser, sync_playwright
from server_fixture import ServerThread
from stage import ROOT, Stage, program


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(program("chromium"), tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="session")
def pages() -> Iterator[PageServer]:
    with PageServer(ROOT) as running:
        yield running


@pytest.fixture
def page(chromium: Chromium, pages: PageServer) -> Iterator[Stage]:
    with chromium.page(pages.url + "/test/support/page.html") as stage:
        yield stage


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(program("node")) as stage:
        yield stage


@pytest.fixture(params=["chromium", "node"])
def stage(request: pytest.FixtureRequest) -> Stage:
    """Each test that asks for it runs in both."""
    found: Stage = request.getfixturevalue("page" if request.param == "chromium" else "node")
    return found


@pytest.fixture(scope="module")
def console_browser() -> Iterator[Browser]:
    """Of one module only: while it is there its event loop runs in this thread, and other tests want one of theirs."""
    with sync_playwright() as playwright, browser(playwright) as running:
        yield running


@pytest.fixture
def console_server() -> Iterator[ServerThread]:
    """What a system table says is looked at ten times a second: tests wait for it."""
    with ServerThread(live_system_sample_seconds=0.1) as running:
        yield running


@pytest.fixture
def console(console_browser: Browser, console_server: ServerThread) -> Iterator[Console]:
    context = console_browser.new_context(viewport={"width": 1280, "height": 800})
    tab = Console(context.new_page(), console_server)
    yield tab
    context.close()
    assert tab.complaints == []
