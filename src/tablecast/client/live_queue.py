"""Steps on their way to one reader, in order and bounded.

Who fills it never waits: if there is no room, the live query leaves the fan-out, and resumes when all was read.
"""

from __future__ import annotations

from collections import deque

from tablecast.model.live import LiveStep, reset_step

MAX_QUEUED_CHANGES = 10_000  # of one live query, told and not read yet; a single commit may be larger


class StepQueue:
    """`resume` is the commit that the reader will have reached with what is queued; None while rows are missing."""

    def __init__(self) -> None:
        self._steps: deque[LiveStep] = deque()
        self._changes = 0
        self._is_told = False  # anything at all
        self.seq = 0
        self.resume: int | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def has_room(self, changes: int = 1) -> bool:
        """An empty one takes a commit of any size: it comes whole."""
        return not self._steps or self._changes + changes <= MAX_QUEUED_CHANGES

    def put(self, step: LiveStep) -> None:
        self._steps.append(step)
        self._changes += len(step.changes)
        self._is_told = True
        self.seq, self.resume = step.seq, step.seq if step.whole else None

    def start_over(self, seq: int) -> None:
        """All rows are to come: whatever the reader has does not count any more."""
        if self._is_told:
            self.put(reset_step(seq))
        self.seq, self.resume = seq, None

    def reach(self, seq: int) -> None:
        """Nothing was to be told up to this commit."""
        if self.resume is not None:
            self.seq = self.resume = max(seq, self.resume)

    def take(self) -> LiveStep:
        step = self._steps.popleft()
        self._changes -= len(step.changes)
        return step

    def clear(self) -> None:
        self._steps.clear()
        self._changes = 0
