"""Failpoints: named places in the code where a test may make something happen.

Production code says where it is, and nothing else:

    failpoint.hit("before_sync")

With nothing armed a hit is a set lookup and a dict check: cheap enough for the write path. A test arms a name
with an action, any callable: it runs in the thread that hits the name, once, on the hit after `after` others,
and the name is then quiet again, so that whatever recovers from the action is not struck a second time. What
an action does (kill the process, raise, block) is not this module's business: see
`tablecast.testing.failpoints`.

The names are a closed set. A crash test that arms a misspelt name would pass for ever without testing
anything, so an unknown name is an error on both sides: when it is armed and when it is hit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tablecast.errors import AlreadyExists, InvalidRequest

NAMES: Final = frozenset(
    {
        "before_write",  # the batch is decided, the store has not seen it
        "after_write",  # the store has it, readers may see it, it is not durable
        "before_sync",
        "after_sync",  # durable, nobody was told
        "before_ack",  # the last moment before the producer hears of it
        "during_retention",
        "during_open",
        "during_checkpoint",
        "during_drop",
        "during_staging",  # a part is on disk, not yet under its name
        "before_ingest",  # a load is decided and durable, none of its files is taken in
        "during_ingest",  # the files of one family are, those of the next are not
        "before_forgetting",  # a load is acknowledged, its files are still in staging
        "during_resolve",  # at opening, a load that was cut off is being completed
    }
)

Action = Callable[[], object]


class Armed:
    """One armed failpoint: how often it was hit, and whether its action has run."""

    def __init__(self, name: str, action: Action, after: int) -> None:
        self.name = name
        self.action = action
        self.after = after
        self.hits = 0
        self.fired = False


_armed: dict[str, Armed] = {}
_lock = threading.Lock()


def hit(name: str) -> None:
    """Called by production code at the place called `name`. Raises whatever an armed action raises."""
    if _armed or name not in NAMES:
        _hit(name)


def _hit(name: str) -> None:
    _require_known(name)
    with _lock:
        point = _armed.get(name)
        if point is None:
            return
        point.hits += 1
        if point.hits <= point.after:
            return
        point.fired = True
        del _armed[name]
    point.action()  # outside the lock: an action may block, and other names must still be hit meanwhile


def arm(name: str, action: Action, *, after: int = 0) -> Armed:
    """Makes the (`after` + 1)-th hit of `name` from now on run `action`. One action per name."""
    _require_known(name)
    if after < 0:
        raise InvalidRequest(f"failpoint {name!r}: after={after}, must be 0 or more", after=after)
    point = Armed(name, action, after)
    with _lock:
        if name in _armed:
            raise AlreadyExists(f"failpoint {name!r} is already armed; disarm it first", name=name)
        _armed[name] = point
    return point


def disarm(name: str) -> None:
    """Makes hits of `name` do nothing again. Disarming what is not armed, or has fired, is fine."""
    _require_known(name)
    with _lock:
        _armed.pop(name, None)


@contextmanager
def armed(name: str, action: Action, *, after: int = 0) -> Iterator[Armed]:
    """Armed inside the block only; yields the point, so that a test can insist that it `fired`."""
    point = arm(name, action, after=after)
    try:
        yield point
    finally:
        with _lock:
            if _armed.get(name) is point:  # it may have fired, and the name been armed anew
                del _armed[name]


def _require_known(name: str) -> None:
    if name not in NAMES:
        known = ", ".join(sorted(NAMES))
        raise InvalidRequest(f"unknown failpoint {name!r}; the failpoints are: {known}", name=name)
