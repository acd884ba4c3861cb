"""Failpoints: nothing when unarmed, once when armed, and never by a name that does not exist."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tablecast.core import failpoint
from tablecast.errors import AlreadyExists, InvalidRequest, Timeout
from tablecast.storage.base import StorageFailure
from tablecast.testing.failpoints import VARIABLE, Gate, arm_from_environment, raising


@pytest.fixture(autouse=True)
def nothing_armed() -> Iterator[None]:
    yield
    for name in failpoint.NAMES:
        failpoint.disarm(name)


def test_a_hit_does_nothing_when_nothing_is_armed() -> None:
    for name in failpoint.NAMES:
        failpoint.hit(name)


def test_the_action_runs_once_on_the_hit_after_the_others() -> None:
    runs: list[int] = []
    point = failpoint.arm("before_sync", lambda: runs.append(point.hits), after=2)
    for _ in range(6):
        failpoint.hit("before_sync")
    assert runs == [3]
    assert point.fired


def test_other_names_stay_quiet() -> None:
    with failpoint.armed("before_sync", raising(ValueError())) as point:
        failpoint.hit("after_sync")
    assert (point.hits, point.fired) == (0, False)


def test_a_disarmed_name_is_quiet() -> None:
    failpoint.arm("before_write", raising(ValueError()))
    failpoint.disarm("before_write")
    failpoint.disarm("before_write")
    failpoint.hit("before_write")


def test_armed_ends_with_its_block_whatever_happens() -> None:
    with pytest.raises(KeyError), failpoint.armed("before_ack", raising(ValueError()), after=1):
        raise KeyError
    failpoint.hit("before_ack")
    failpoint.hit("before_ack")


def test_armed_leaves_what_was_armed_after_it_fired() -> None:
    with failpoint.armed("before_ack", lambda: None) as first:
        failpoint.hit("before_ack")
        second = failpoint.arm("before_ack", lambda: None)
    failpoint.hit("before_ack")
    assert first.fired and second.fired


def test_an_error_comes_out_of_the_place_that_was_hit() -> None:
    with failpoint.armed("during_open", raising(StorageFailure("disk full"))):
        with pytest.raises(StorageFailure, match="disk full"):
            failpoint.hit("during_open")
        failpoint.hit("during_open")  # recovery comes by the same place, and is let through


@pytest.mark.parametrize("use", [failpoint.hit, failpoint.disarm, lambda n: failpoint.arm(n, lambda: None)])
@pytest.mark.parametrize("another_is_armed", [False, True])
def test_an_unknown_name_is_an_error(use, another_is_armed: bool) -> None:  # type: ignore[no-untyped-def]
    if another_is_armed:
        failpoint.arm("before_sync", lambda: None)
    with pytest.raises(InvalidRequest, match=r"unknown failpoint 'befor_sync'; the failpoints are: after_sync, "):
        use("befor_sync")


def test_a_name_is_armed_once_at_a_time() -> None:
    failpoint.arm("before_sync", lambda: None)
    with pytest.raises(AlreadyExists, match="'before_sync' is already armed"):
        failpoint.arm("before_sync", lambda: None)


def test_after_is_not_negative() -> None:
    with pytest.raises(InvalidRequest, match="after=-1, must be 0 or more"):
        failpoint.arm("before_sync", lambda: None, after=-1)


def test_hits_of_many_threads_fire_once() -> None:
    runs: list[None] = []
    failpoint.arm("after_write", lambda: runs.append(None), after=4000)
    hits = [threading.Thread(target=lambda: [failpoint.hit("after_write") for _ in range(1000)]) for _ in range(8)]
    for thread in hits:
        thread.start()
    for thread in hits:
        thread.join()
    assert runs == [None]


def test_a_gate_holds_the_thread_and_other_names_go_on() -> None:
    gate, passed = Gate(), threading.Event()

    def write() -> None:
        failpoint.hit("before_sync")
        passed.set()

    with failpoint.armed("before_sync", gate):
        writer = threading.Thread(target=write)
        writer.start()
        gate.wait_reached()
        failpoint.hit("before_write")
        assert not passed.is_set()
        gate.open()
        writer.join()
    assert passed.is_set()


def test_a_gate_that_nobody_opens_or_reaches_says_so() -> None:
    gate = Gate(timeout_seconds=0)
    with pytest.raises(Timeout, match="not reached within 0 s"):
        gate.wait_reached()
    with pytest.raises(Timeout, match="not opened within 0 s"):
        gate()


# --- from the environment -----------------------------------------------------------------------------------


@pytest.mark.parametrize("environ", [{}, {VARIABLE: ""}])
def test_without_the_variable_nothing_is_armed(environ: dict[str, str]) -> None:
    assert arm_from_environment(environ) == []


def test_several_points_with_and_without_after() -> None:
    points = arm_from_environment({VARIABLE: "before_sync:raise:after=2, during_drop:kill"})
    assert [(point.name, point.after) for point in points] == [("before_sync", 2), ("during_drop", 0)]
    failpoint.hit("before_sync")
    failpoint.hit("before_sync")
    with pytest.raises(StorageFailure, match="injected at failpoint 'before_sync'"):
        failpoint.hit("before_sync")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sync:kill", "unknown failpoint 'sync'"),
        ("before_sync", "unknown action ''"),
        ("before_sync:block", "unknown action 'block'.* it is 'kill' or 'raise'"),
        ("before_sync:kill:17", "'17' in .* should be 'after='"),
        ("before_sync:kill:after=-1", "'after=-1' in .* should be 'after='"),
        ("before_sync:kill:after=", "'after=' in .* should be 'after='"),
        ("before_sync:kill,", "unknown"),
    ],
)
def test_a_variable_that_makes_no_sense_is_an_error(text: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        arm_from_environment({VARIABLE: text})


CHILD = """
from tablecast.core import failpoint
{arm}
for n in range(5):
    failpoint.hit("before_sync")
    print(n, flush=True)
"""


@pytest.mark.parametrize(
    ("arm", "printed", "status"),
    [
        ("from tablecast.testing import failpoints; failpoints.arm_from_environment()", 3, -signal.SIGKILL),
        ("", 5, 0),  # the variable alone does nothing
    ],
)
def test_a_child_process_is_killed_at_the_hit_if_it_asks_for_it(arm: str, printed: int, status: int) -> None:
    environ = {**os.environ, VARIABLE: "before_sync:kill:after=3"}
    child = [sys.executable, "-c", CHILD.format(arm=arm)]
    done = subprocess.run(child, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(n) for n in range(printed)]
    assert done.returncode == status
