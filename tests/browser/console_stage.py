"""The console in a page of Chromium, driven by Playwright: signing in, going places, checking that it is accessible."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Playwright, expect
from server_fixture import PASSWORD, Address
from stage import SECONDS, program

expect.set_options(timeout=SECONDS * 1000)
SIZES = {1280: 800, 390: 844}  # a laptop, a phone
SCHEMES = ("light", "dark")
LEAST_INK = 6  # pixels: of a point
SHOTS = Path(__file__).parents[2] / "build" / "console"  # pictures to look at; nothing compares them

INK = """(plot, name) => {
  const canvas = plot.querySelector("canvas");
  if (canvas === null) return { pixels: 0, left: 1, right: 0, top: 1, bottom: 0 }; // it is about to be made
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color.match(/[0-9.]+/g).map(Number);
  probe.remove();
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const found = { pixels: 0, left: 1, right: 0, top: 1, bottom: 0 };
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] < 100 || [0, 1, 2].some((part) => Math.abs(data[at + part] - colour[part]) > 40)) continue;
    const [x, y] = [((at / 4) % canvas.width) / canvas.width, Math.floor(at / 4 / canvas.width) / canvas.height];
    found.pixels += 1;
    found.left = Math.min(found.left, x);
    found.right = Math.max(found.right, x);
    found.top = Math.min(found.top, y);
    found.bottom = Math.max(found.bottom, y);
  }
  return found;
}"""


class Ink(NamedTuple):
    """Pixels of one colour in a plot, and between which parts of its width and height they are, from the upper left."""

    pixels: int
    left: float
    right: float
    top: float
    bottom: float


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
                assert self.cut_off() == [], f"{name} at {width} px does not show all of its figures"

    def plot(self, title: str) -> Locator:
        return self.page.get_by_role("img", name=re.compile(f"^{re.escape(title)}:"))

    def ink(self, title: str, colour: str) -> Ink:
        """What a plot has drawn in a line's colour, which is a property of the style sheet."""
        return Ink(**self.plot(title).evaluate(INK, colour))

    def wait_for_ink(self, title: str, *colours: str, height: float = 0.0) -> None:
        """Until there is something of each line, though it be a single sample; and it goes up or down so far."""
        wanted = f"""([plot, name, height]) => {{
          const {{ pixels, top, bottom }} = ({INK})(plot, name);
          return pixels >= {LEAST_INK} && bottom - top >= height;
        }}"""
        for colour in colours:
            self.page.wait_for_function(wanted, arg=[self.plot(title).element_handle(), colour, height])

    def violations(self) -> list[str]:
        """What axe finds wrong."""
        self.page.evaluate(AXE_SCRIPT)
        found: list[dict[str, Any]] = self.page.evaluate("axe.run().then(({ violations }) => violations)")
        return [f"{v['id']}: {v['help']}: {[node['html'][:200] for node in v['nodes'][:3]]}" for v in found]

    def overflow(self) -> int:
        """Pixels that one would have to scroll sideways."""
        wide: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return wide

    def cut_off(self) -> list[str]:
        """Figures that have more to show than room."""
        find = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
        cut: list[str] = self.page.locator(".figure").evaluate_all(find)
        return cut
