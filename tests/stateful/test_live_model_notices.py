"""The model of live queries is worth what it notices: here the hub is made to do wrong, and the model must fail.

The hub survives a subscriber that raises, so a check inside of a callback fails nothing by itself; that it does is shown here.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test
from live_followers import Follower
from test_live_model import LiveMachine

from tablecast.engine.live import LiveSubscription, Told
from tablecast.engine.live_telling import Telling, _guarded
from tablecast.engine.live_told import Counts

# The same examples each time, and no search for a smaller one: that it fails is all there is to know.
FEW = settings(
    max_examples=40, stateful_step_count=30, derandomize=True, database=None, phases=[Phase.generate],
    report_multiple_bugs=False, print_blob=False,
)  # fmt: skip
_tell_all = Telling._tell_all


TRIES = 10


def model_fails(words: str) -> None:
    """At what moment it notices is up to the hub's threads. Hypothesis runs a failing example twice, and if they notice at
    another moment then, it says only that it is flaky: that does not count, neither for nor against the model."""
    for _ in range(TRIES):
        try:
            run_state_machine_as_test(LiveMachine, settings=FEW)
        except Flaky:
            continue
        except AssertionError as failure:
            assert words in str(failure)
            return
        raise RuntimeError("the model noticed nothing")
    raise RuntimeError(f"flaky {TRIES} times")


def test_a_subscriber_that_always_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(self: Follower, subscription: LiveSubscription, told: Told) -> None:
        with self.noticed():
            raise AssertionError("as it always does")

    monkeypatch.setattr(Follower, "told", told)
    model_fails("as it always does")


def test_a_commit_that_is_told_in_part_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_part_first(self: Telling, members: Iterable[LiveSubscription], told: Told) -> int:
        members = list(members)
        if len(told.changes) > 1:
            part = Told(told.channel, told.seq, told.changes[:1], told.query, Counts())
            before = {subscription: subscription.seq for subscription in members}
            _tell_all(self, members, part)
            for subscription, seq in before.items():
                subscription.seq = seq
        return _tell_all(self, members, told)

    monkeypatch.setattr(Telling, "_tell_all", in_part_first)
    model_fails("as of commit")


def test_a_commit_that_is_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(self: Telling, members: Iterable[LiveSubscription], told: Told) -> int:
        members = list(members)
        before = {subscription: subscription.seq for subscription in members}
        _tell_all(self, members, told)
        for subscription, seq in before.items():
            subscription.seq = seq
        return _tell_all(self, members, told)

    monkeypatch.setattr(Telling, "_tell_all", twice)
    model_fails("told again, or out of order")


def test_a_subscriber_that_is_sent_back_further_than_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_far(self: Telling, subscription: LiveSubscription) -> None:
        self._close(subscription)
        subscription.seq = 0
        _guarded(subscription.subscriber.must_resume, subscription)

    monkeypatch.setattr(Telling, "_drop", too_far)
    model_fails("sent back")
