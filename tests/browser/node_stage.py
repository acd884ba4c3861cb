"""A node process that evaluates what it is sent."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from typing import Any, Self

from stage import ROOT, SECONDS, unwrapped, wrapped

STAGE = ROOT / "test" / "support" / "node_stage.js"


class Node:
    """`flags` are node's own."""

    def __init__(self, node: str, *flags: str) -> None:
        self._process = subprocess.Popen(
            [node, *flags, str(STAGE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._said: queue.Queue[str] = queue.Queue()
        self._listening = threading.Thread(target=self._listen, name="node")
        self._listening.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def evaluate(self, expression: str) -> Any:
        self.begin(expression)
        return self.result()

    def begin(self, expression: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wrapped(expression)) + "\n")
        self._process.stdin.flush()

    def result(self) -> Any:
        said = self._said.get(timeout=SECONDS)
        assert said, f"node ended with {self._process.wait(SECONDS)}"
        return unwrapped(json.loads(said))

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._listening.join()
        self._process.stdin.close()
        self._process.stdout.close()
