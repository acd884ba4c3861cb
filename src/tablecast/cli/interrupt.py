"""Ctrl-C that cannot get lost.

Python raises KeyboardInterrupt wherever the program happens to be. If that is a finalizer or a weak reference's callback,
which run whenever something is freed, it is reported and forgotten, and what should have ended goes on. Here it is also
remembered, for whoever goes round in circles to ask.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """In the main thread. What is given raises KeyboardInterrupt if Ctrl-C was pressed since."""
    is_pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal is_pressed
        is_pressed = True
        raise KeyboardInterrupt

    def check() -> None:
        if is_pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
