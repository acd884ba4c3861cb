"""What a failpoint can do in a test, and how a child process is told to do it.

In the test's own process, arm an action:

    gate = Gate()
    with failpoint.armed("before_sync", gate):
        writer.start()
        gate.wait_reached()      # the writer stands right before its fsync
        ...
        gate.open()

In a child process that is going to be killed, set a variable and let the child call `arm_from_environment()`
first:

    TABLECAST_FAILPOINT="before_sync:kill:after=17"

    specs  = spec { "," spec }
    spec   = name ":" action [ ":after=" number ]
    action = "kill" | "raise"

Nothing but that call reads the variable: a database in production cannot be armed from outside.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from typing import Final

from tablecast.core import failpoint
from tablecast.errors import InvalidRequest, Timeout
from tablecast.storage.base import StorageFailure

VARIABLE: Final = "TABLECAST_FAILPOINT"
GATE_TIMEOUT_SECONDS: Final = 60.0  # a gate nobody opens should fail its test, not hang the run


def kill() -> None:
    """Ends this process at once, as a power cut would: no handlers, no flushing, no goodbyes."""
    os.kill(os.getpid(), signal.SIGKILL)


def raising(error: BaseException) -> failpoint.Action:
    """Raises `error` out of the place that was hit."""

    def action() -> None:
        raise error

    return action


class Gate:
    """Stops the thread that hits it until `open`. Other threads can wait for it to be reached."""

    def __init__(self, *, timeout_seconds: float = GATE_TIMEOUT_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._reached = threading.Event()
        self._opened = threading.Event()

    def __call__(self) -> None:
        self._reached.set()
        self._wait(self._opened, "opened")

    def wait_reached(self) -> None:
        self._wait(self._reached, "reached")

    def open(self) -> None:
        self._opened.set()

    def _wait(self, event: threading.Event, what: str) -> None:
        if not event.wait(self._timeout_seconds):
            raise Timeout(f"the gate was not {what} within {self._timeout_seconds} s")


def arm_from_environment(environ: Mapping[str, str] = os.environ) -> list[failpoint.Armed]:
    """Arms what the variable asks for: nothing when it is unset or empty."""
    text = environ.get(VARIABLE, "")
    return [_arm(spec.strip()) for spec in text.split(",")] if text else []


def _arm(spec: str) -> failpoint.Armed:
    name, _, rest = spec.partition(":")
    action, _, option = rest.partition(":")
    return failpoint.arm(name, _action(action, name, spec), after=_after(option, spec))


def _action(word: str, name: str, spec: str) -> failpoint.Action:
    if word == "kill":
        return kill
    if word == "raise":
        return raising(StorageFailure(f"injected at failpoint {name!r}", failpoint=name))
    raise InvalidRequest(f"{VARIABLE}: unknown action {word!r} in {spec!r}; it is 'kill' or 'raise'", spec=spec)


def _after(option: str, spec: str) -> int:
    if not option:
        return 0
    word, _, number = option.partition("=")
    if word != "after" or not (number.isascii() and number.isdigit()):
        raise InvalidRequest(f"{VARIABLE}: {option!r} in {spec!r} should be 'after=' and a number", spec=spec)
    return int(number)
