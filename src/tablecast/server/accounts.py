"""Those who are served for longer than a moment, when their account changes meanwhile.

A request is answered by what its sender may do when it comes. A consume that waits, and a live query, go on for minutes:
when an account is dropped or changed, or a sign-in was ended because one of its refresh tokens was used twice, each of
them is looked at again, with the commit that brings the change, and ends if a new request would be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tablecast.codec.catalog import User
from tablecast.engine.commit import Commit
from tablecast.engine.engine import Engine
from tablecast.server.auth import Authenticator, SignedIn
from tablecast.sql.waiting import Ending


class Accounts:
    """Of one event loop."""

    def __init__(self, engine: Engine, auth: Authenticator) -> None:
        self._auth = auth
        self._loop = asyncio.get_running_loop()
        self._users: Mapping[str, User] = engine.catalog.users
        self._polls: dict[Ending, SignedIn] = {}
        self._checks: list[Callable[[], None]] = [self._check_polls]
        self.stop = engine.feed.listen(self._hear)
        auth.sign_in_ended = self._check_all

    def at_change(self, check: Callable[[], None]) -> None:
        """Calls `check` on the event loop after every change of an account."""
        self._checks.append(check)

    @contextmanager
    def poll(self, signed_in: SignedIn) -> Iterator[Ending]:
        """What ends a consume while it waits."""
        ending = Ending()
        self._polls[ending] = signed_in
        try:
            ending.error = self._auth.refused_now(signed_in)  # it may have changed since the request came
            yield ending
        finally:
            del self._polls[ending]

    def _hear(self, commit: Commit) -> None:
        """On the syncing thread."""
        if commit.catalog.users is not self._users:
            self._users = commit.catalog.users
            self._loop.call_soon_threadsafe(self._check_all)

    def _check_all(self) -> None:
        for check in self._checks:
            check()

    def _check_polls(self) -> None:
        for ending, signed_in in list(self._polls.items()):
            error = self._auth.refused_now(signed_in)
            if error is not None:
                ending.end(error)
