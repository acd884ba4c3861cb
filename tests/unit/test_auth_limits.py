"""Token buckets and lock-out, on a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.errors import LockedOut, RateLimited
from tablecast.server.limits import ANYWHERE_FACTOR, KNOWN_ADDRESS_SECONDS, Buckets, Lockout, Recent
from tablecast.testing.clock import FakeClock


def taken(buckets: Buckets, name: str, times: int) -> int:
    """How many of so many requests in a row are let through."""
    passed = 0
    for _ in range(times):
        try:
            buckets.take(name)
            passed += 1
        except RateLimited:
            pass
    return passed


# --- buckets ----------------------------------------------------------------------------------------------------


def test_a_burst_is_a_seconds_worth_and_then_it_trickles() -> None:
    clock = FakeClock()
    buckets = Buckets("user", 10, clock)
    assert taken(buckets, "ann", 15) == 10
    clock.advance(99)
    assert taken(buckets, "ann", 5) == 0
    clock.advance(1)
    assert taken(buckets, "ann", 5) == 1
    clock.advance(60_000)
    assert taken(buckets, "ann", 50) == 10, "what is saved up is bounded"


def test_names_have_buckets_of_their_own() -> None:
    buckets = Buckets("user", 2, FakeClock())
    assert taken(buckets, "ann", 5) == 2
    assert taken(buckets, "bob", 5) == 2


def test_less_than_one_a_second_still_lets_one_through() -> None:
    clock = FakeClock()
    buckets = Buckets("user", 0.5, clock)
    assert taken(buckets, "ann", 3) == 1
    clock.advance(2_000)
    assert taken(buckets, "ann", 3) == 1


def test_the_refusal_says_who_how_much_and_when() -> None:
    clock = FakeClock()
    buckets = Buckets("address", 4, clock)
    taken(buckets, "10.0.0.1", 4)
    with pytest.raises(RateLimited, match=r"address 10\.0\.0\.1 makes more than 4 requests a second") as caught:
        buckets.take("10.0.0.1")
    wait_seconds = caught.value.details["retry_after_seconds"]
    assert wait_seconds == 0.25
    clock.advance(int(wait_seconds * 1000))
    buckets.take("10.0.0.1")


def test_a_full_memory_forgets_the_longest_known() -> None:
    buckets = Buckets("user", 1, FakeClock(), limit=2)
    for name in ("a", "b", "c"):
        buckets.take(name)
    assert [taken(buckets, name, 1) for name in ("c", "b", "a")] == [0, 0, 1]


@given(
    per_second=st.integers(1, 50),
    steps=st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 80)), max_size=30),
)
def test_no_window_lets_through_more_than_its_time_and_one_burst(per_second: int, steps: list[tuple[int, int]]) -> None:
    clock = FakeClock()
    buckets = Buckets("user", per_second, clock)
    passed = []
    for wait_ms, requests in steps:
        clock.advance(wait_ms)
        passed += [clock()] * taken(buckets, "ann", requests)
    for first, since in enumerate(passed):
        for count, until in enumerate(passed[first:], 1):
            assert count <= per_second + (until - since) * per_second / 1000 + 1e-6


# --- lock-out ---------------------------------------------------------------------------------------------------


def guess(lockout: Lockout, user: str, address: str, times: int) -> int:
    """How many of so many wrong passwords are looked at."""
    looked_at = 0
    for _ in range(times):
        try:
            lockout.attempt(user, address)
            looked_at += 1
        except LockedOut:
            pass
    return looked_at


def sign_in(lockout: Lockout, user: str, address: str) -> None:
    lockout.attempt(user, address)
    lockout.succeeded(user, address)


def test_a_guesser_is_locked_out_and_only_where_it_guesses() -> None:
    lockout = Lockout(3, 60, FakeClock())
    assert guess(lockout, "ann", "evil", 10) == 3
    sign_in(lockout, "ann", "home")
    sign_in(lockout, "bob", "evil")


def test_a_lock_out_ends_by_itself_however_often_it_is_tried() -> None:
    clock = FakeClock()
    lockout = Lockout(3, 60, clock)
    guess(lockout, "ann", "evil", 3)
    clock.advance(59_999)
    assert guess(lockout, "ann", "evil", 10) == 0
    clock.advance(1)
    assert guess(lockout, "ann", "evil", 10) == 3


def test_the_refusal_says_who_and_how_long() -> None:
    clock = FakeClock()
    lockout = Lockout(1, 60, clock)
    guess(lockout, "ann", "evil", 1)
    clock.advance(500)
    with pytest.raises(LockedOut, match="too many wrong passwords for ann from evil; try again in 60 s") as caught:
        lockout.attempt("ann", "evil")
    assert caught.value.details == {"retry_after_seconds": 59.5}


def test_a_right_password_clears_the_count() -> None:
    lockout = Lockout(3, 60, FakeClock())
    for _ in range(5):
        assert guess(lockout, "ann", "home", 2) == 2
        sign_in(lockout, "ann", "home")


def test_an_attempt_without_an_answer_does_not_count() -> None:
    lockout = Lockout(1, 60, FakeClock())
    for _ in range(30):
        lockout.attempt("ann", "home")
        lockout.withdraw("ann", "home")
    sign_in(lockout, "ann", "home")


def test_many_addresses_together_are_stopped_too() -> None:
    lockout = Lockout(2, 60, FakeClock())
    looked_at = sum(guess(lockout, "ann", f"bot-{n}", 2) for n in range(100))
    assert looked_at == 2 * ANYWHERE_FACTOR


def test_many_addresses_cannot_shut_the_user_out_of_an_address_it_uses() -> None:
    clock = FakeClock()
    lockout = Lockout(2, 30 * 86_400, clock)
    sign_in(lockout, "ann", "home")
    for n in range(100):
        guess(lockout, "ann", f"bot-{n}", 2)
    sign_in(lockout, "ann", "home")
    assert guess(lockout, "ann", "elsewhere", 1) == 0
    assert guess(lockout, "ann", "home", 5) == 2, "known, and still bounded by its own count"
    clock.advance(KNOWN_ADDRESS_SECONDS * 1000)
    assert guess(lockout, "ann", "home", 1) == 0, "no longer known"


def test_what_is_remembered_is_bounded() -> None:
    recent: Recent[int, str] = Recent(3)
    for n in range(5):
        recent.put(n, str(n))
    recent.put(2, "again")
    recent.put(5, "5")
    assert [recent.get(n) for n in range(6)] == [None, None, "again", None, "4", "5"]
    recent.drop(4)
    recent.drop(4)
    assert len(recent) == 2


def test_who_signs_in_after_a_lock_out_is_told_apart() -> None:
    clock = FakeClock()
    lockout = Lockout(2, 60, clock)
    guess(lockout, "ann", "evil", 2)
    guess(lockout, "bob", "home", 1)
    clock.advance(60_000)
    outcomes = []
    for user, address in (("ann", "evil"), ("ann", "evil"), ("bob", "home"), ("ann", "home")):
        lockout.attempt(user, address)
        outcomes.append(lockout.succeeded(user, address))
    assert outcomes == [True, False, False, False]
