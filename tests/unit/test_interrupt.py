"""Ctrl-C that Python forgets because of where it came."""

from __future__ import annotations

import signal

import pytest

from tablecast.cli.interrupt import interruptible


class Interrupted:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_in_a_finalizer_is_remembered() -> None:
    before = signal.getsignal(signal.SIGINT)
    went_on = False
    with pytest.raises(KeyboardInterrupt), interruptible() as check:
        check()
        Interrupted()
        went_on = True  # Python has reported it, and forgotten it
        check()
    assert went_on
    assert signal.getsignal(signal.SIGINT) is before


def test_any_other_is_raised_where_it_comes() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")
