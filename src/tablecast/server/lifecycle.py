"""Where the process is in its life, for those who must behave differently at its ends.

    starting ──started()──> serving ──drain()──> draining

The process that runs the server moves it; the app asks. `/ready` is 200 only in between. Draining ends every parked
long poll at once, so that the process can finish what runs and close.
"""

from __future__ import annotations

from collections.abc import Callable


class Lifecycle:
    """Belongs to one event loop; all calls are made on it."""

    def __init__(self) -> None:
        self._serving = False
        self._draining = False
        self._at_drain: list[Callable[[], None]] = []

    @property
    def serving(self) -> bool:
        return self._serving

    @property
    def draining(self) -> bool:
        return self._draining

    def at_drain(self, action: Callable[[], None]) -> None:
        """`action` is called once, when draining begins."""
        self._at_drain.append(action)

    def started(self) -> None:
        self._serving = not self._draining

    def drain(self) -> None:
        """Nothing new is waited for from here on. Idempotent."""
        if self._draining:
            return
        self._serving, self._draining = False, True
        for action in self._at_drain:
            action()
