"""The docs as a site: built strictly, complete, and needing nobody: no script, style, font or picture comes from elsewhere.

Where Chromium is installed it is opened as a reader does, from a server and from the disk, and search finds things.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pages import ROOT

CHROMIUM = shutil.which("chromium")
BUILD = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # --quiet would keep warnings from counting
FROM_ELSEWHERE = re.compile(r"^(?:[a-z]+:)?//")
SECONDS = 120


class Loaded(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(values.get("src") or "")
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preconnect", "preload", "manifest"):
            self.found.append(values.get("href") or "")


def build(directory: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [*BUILD, "-f", str(config), "-d", str(directory)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = build(directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_every_page_is_on_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").with_suffix(".html")
        made = site / (place.with_name("index.html") if page.name == "README.md" else place)
        assert made.exists(), place
    assert (site / "tour.html").exists()
    assert (site / "changelog.html").exists()


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    for name in ("mkdocs.yml", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    page = tmp_path / "docs" / "users.md"
    page.write_text(page.read_text() + "\n[nowhere](server.md#no-such-heading)\n")
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert "no-such-heading" in done.stdout + done.stderr


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text())
        assert [url for url in loaded.found if FROM_ELSEWHERE.match(url)] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", style.read_text()), style.name


def test_lists_tables_and_fences_became_such(site: Path) -> None:
    """What GitHub takes and the site's Markdown would not, if tools/site.py did not help it."""
    for page in site.rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>|<code.*?</code>|<script.*?</script>", "", page.read_text(), flags=re.DOTALL)
        body = text.partition("<article")[2].partition("</article>")[0]
        assert "```" not in body, page.name
        assert not re.search(r"<p>[^<]*\n- ", body), page.name
        assert not re.search(r"<p>\|", body), page.name


def test_search_knows_every_page(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"guarantees.html", "mqtt.html", "formats/sync.html", "tour.html", "commands.html"} <= places


# --- as a reader opens it ---------------------------------------------------------------------------------------------


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def found_in_chromium(address: str, words: str) -> tuple[list[str], list[str]]:
    """Searches as a reader does: the first places that were found, and whatever was asked of other machines."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.locator("input.md-search__input").click()
        page.keyboard.type(words)
        result = page.locator("a.md-search-result__link").first
        result.wait_for(timeout=SECONDS * 1000)
        places = [each.get_attribute("href") or "" for each in page.locator("a.md-search-result__link").all()]
        browser.close()
    base = address.rpartition("/")[0]
    return places, [url for url in asked if not url.startswith((base, "data:", "blob:", "about:"))]


@pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason="Chromium is not installed")
@pytest.mark.parametrize("way", ["served", "file"])
def test_search_works_without_any_other_machine(site: Path, served: str, way: str) -> None:
    address = f"{served}/index.html" if way == "served" else (site / "index.html").as_uri()
    places, elsewhere = found_in_chromium(address, "backpressure")
    assert any("guarantees.html" in place for place in places)
    assert elsewhere == []
