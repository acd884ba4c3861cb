"""Where the JavaScript client runs: pages of a real Chromium, and programs of node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))  # for server_fixture
from chromium import Chromium
from node_stage import Node
from page_server import PageServer
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
