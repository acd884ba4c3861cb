"""A headless Chromium, driven over its DevTools protocol: JSON messages on a WebSocket, one session per page."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from stage import SECONDS, unwrapped, wrapped
from websockets.sync.client import connect

FLAGS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-gpu",
    "--disable-sync",
    "--no-proxy-server",
)
LISTENING = "DevTools listening on "


class Chromium:
    def __init__(self, chromium: str, folder: Path) -> None:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # root cannot have one
        self._process = subprocess.Popen(
            [chromium, *FLAGS, *sandbox, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._numbers = itertools.count(1)
        self._closing = ExitStack()
        self._socket = self._closing.enter_context(
            connect(self._address(), max_size=None, compression=None, proxy=None, ping_interval=None)
        )
        self._reading = threading.Thread(target=self._read_errors, name="chromium")
        self._reading.start()  # what nobody reads would block it

    def _address(self) -> str:
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            if line.startswith(LISTENING):
                return line.removeprefix(LISTENING).strip()
            said.append(line)
        raise AssertionError(f"Chromium ended with {self._process.wait()}:\n{''.join(said)}")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for _ in self._process.stderr:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ask("Browser.close")
        self._closing.close()
        self._process.wait(SECONDS)
        self._reading.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    @contextmanager
    def page(self, url: str) -> Iterator[Page]:
        """In a context of its own: no cookies, no cache, no connections of others."""
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        target = self.ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        try:
            page = Page(self, session)
            page.open(url)
            yield page
        finally:
            self.ask("Target.disposeBrowserContext", browserContextId=context)

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        to = {} if session is None else {"sessionId": session}
        self._socket.send(json.dumps({"id": number, "method": method, "params": params, **to}))
        while True:
            said = json.loads(self._socket.recv(timeout=SECONDS))
            if said.get("id") == number:
                assert "error" not in said, f"{method}: {said['error']}"
                result: dict[str, Any] = said["result"]
                return result


class Page:
    def __init__(self, chromium: Chromium, session: str) -> None:
        self._chromium = chromium
        self._session = session

    def open(self, url: str) -> None:
        """Returns when its scripts have run."""
        navigated = self._chromium.ask("Page.navigate", self._session, url=url)
        assert "errorText" not in navigated, navigated["errorText"]
        self.evaluate(
            f"new Promise((done) => location.href === {json.dumps(url)} && document.readyState === 'complete' "
            "? done() : addEventListener('load', () => done()))"
        )

    def evaluate(self, expression: str) -> Any:
        said = self._chromium.ask(
            "Runtime.evaluate",
            self._session,
            expression=wrapped(expression),
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return unwrapped(said["result"]["value"])
