"""The console in a page of Chromium, driven by Playwright: signing in, going places, checking that it is accessible."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, expect
from server_fixture import PASSWORD, Address
from stage import SECONDS, program

expect.set_options(timeout=SECONDS * 1000)
SIZES = {1280: 800, 390: 844}  # a laptop, a phone
SCHEMES = ("light", "dark")
SHOTS = Path(__file__).parents[2] / "build" / "console"  # pictures to look at; nothing compares them


@contextmanager
def browser(playwright: Playwright) -> Iterator[Browser]:
    """Debian's own Chromium: Playwright's is not installed."""
    flags = ["--no-proxy-server", "--disable-gpu", "--disable-dev-shm-usage"]
    sandbox = os.geteuid() != 0  # root cannot have one
    running = playwright.chromium.launch(executable_path=program("chromium"), args=flags, chromium_sandbox=sandbox)
    try:
        yield running
    finally:
        running.close()


class Console:
    """One tab. A test fails whose page has complaints: errors of its scripts, breaches of its policy."""

    def __init__(self, page: Page, server: Address) -> None:
        self.page = page
        self.server = server
        self.complaints: list[str] = []
        page.set_default_timeout(SECONDS * 1000)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._said)

    def _said(self, message: ConsoleMessage) -> None:
        """Answers that are errors, and connections that are lost, are part of the play."""
        if message.type == "error" and not message.text.startswith(
            ("Failed to load resource", "WebSocket connection to")
        ):
            self.complaints.append(message.text)

    def open(self, route: str = "") -> None:
        self.page.goto(f"{self.server.url}/#/{route}")

    def sign_in(self, user: str = "system", password: str = PASSWORD, route: str = "") -> None:
        self.open(route)
        self.page.get_by_label("User").fill(user)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("navigation", name="Pages").wait_for()

    def go(self, page: str) -> None:
        """By the menu."""
        self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=page, exact=True).click()
        self.page.get_by_role("heading", name=page, level=1).wait_for()

    # --- SQL ---

    def write(self, text: str) -> None:
        """Into the editor, in place of what is there."""
        editor = self.page.get_by_role("textbox", name="SQL")
        editor.focus()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.press("Delete")  # typed over, coloured text has Chromium write styles of its own
        self.page.keyboard.insert_text(text)
        self.page.keyboard.press("Escape")  # completions that came up

    def run(self, text: str) -> None:
        self.write(text)
        self.page.keyboard.press("Control+Enter")

    # --- looking ---

    def shot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def looks(self, name: str) -> None:
        """Pictures at both sizes in both schemes, each of them accessible."""
        for width, height in SIZES.items():
            for scheme in SCHEMES:
                self.page.set_viewport_size({"width": width, "height": height})
                self.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                self.shot(f"{name}-{width}-{scheme}")
                assert self.violations() == [], f"{name} at {width} px, {scheme}"
                assert self.overflow() <= 0, f"{name} at {width} px is wider than the page"

    def violations(self) -> list[str]:
        """What axe finds wrong."""
        self.page.evaluate(AXE_SCRIPT)
        found: list[dict[str, Any]] = self.page.evaluate("axe.run().then(({ violations }) => violations)")
        return [f"{v['id']}: {v['help']}: {[node['html'][:200] for node in v['nodes'][:3]]}" for v in found]

    def overflow(self) -> int:
        """Pixels that one would have to scroll sideways."""
        wide: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return wide
