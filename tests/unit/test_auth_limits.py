"""Token buckets and lock-out, on a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.errors import LockedOut, RateLimited
from tablecast.server.limits import Buckets, Lockout, Recent, network_of
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
    lockout = Lockout(3, 1_000, 60, FakeClock())
    assert guess(lockout, "ann", "evil", 10) == 3
    sign_in(lockout, "ann", "home")
    sign_in(lockout, "bob", "evil")


def test_a_lock_out_ends_by_itself_however_often_it_is_tried() -> None:
    clock = FakeClock()
    lockout = Lockout(3, 1_000, 60, clock)
    guess(lockout, "ann", "evil", 3)
    clock.advance(59_999)
    assert guess(lockout, "ann", "evil", 10) == 0
    clock.advance(1)
    assert guess(lockout, "ann", "evil", 10) == 3


def test_the_refusal_says_who_and_how_long() -> None:
    clock = FakeClock()
    lockout = Lockout(1, 1_000, 60, clock)
    guess(lockout, "ann", "evil", 1)
    clock.advance(500)
    with pytest.raises(LockedOut, match="too many wrong passwords for ann from evil; try again in 60 s") as caught:
        lockout.attempt("ann", "evil")
    assert caught.value.details == {"retry_after_seconds": 59.5}


def test_a_right_password_clears_the_count() -> None:
    lockout = Lockout(3, 1_000, 60, FakeClock())
    for _ in range(5):
        assert guess(lockout, "ann", "home", 2) == 2
        sign_in(lockout, "ann", "home")


def test_an_attempt_without_an_answer_does_not_count() -> None:
    lockout = Lockout(1, 1_000, 60, FakeClock())
    for _ in range(30):
        lockout.attempt("ann", "home")
        lockout.withdraw("ann", "home")
    sign_in(lockout, "ann", "home")


def test_nobody_shuts_a_user_out_elsewhere_with_however_many_addresses_and_attempts() -> None:
    lockout = Lockout(2, 10, 60, FakeClock())
    for n in range(2_000):
        guess(lockout, "system", f"bot-{n}", 3)
    sign_in(lockout, "system", "home")
    sign_in(lockout, "system", "never seen before")
    guess(lockout, "system", "home", 1)
    sign_in(lockout, "system", "home")


def test_an_address_has_one_budget_for_all_the_names_it_guesses_at() -> None:
    clock = FakeClock()
    lockout = Lockout(3, 10, 60, clock)
    assert sum(guess(lockout, f"user {n}", "evil", 3) for n in range(100)) == 10
    with pytest.raises(LockedOut, match="too many wrong passwords from evil; try again in 60 s") as caught:
        lockout.attempt("new name", "evil")
    assert caught.value.details == {"retry_after_seconds": 60.0}
    sign_in(lockout, "user 0", "home")
    clock.advance(60_000)
    assert guess(lockout, "user 0", "evil", 5) == 3


def test_a_right_password_does_not_clear_what_its_address_guessed_at_others() -> None:
    lockout = Lockout(3, 10, 60, FakeClock())
    looked_at = 0
    for n in range(100):
        looked_at += guess(lockout, f"user {n}", "evil", 1)
        try:
            sign_in(lockout, "mallory", "evil")
        except LockedOut:
            break
    assert looked_at == 10


def test_right_passwords_use_up_no_budget() -> None:
    lockout = Lockout(3, 10, 60, FakeClock())
    for n in range(100):
        sign_in(lockout, f"user {n}", "office")
        lockout.attempt("ann", "office")
        lockout.withdraw("ann", "office")


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("unknown", "unknown"),
        ("", ""),
    ],
)
def test_whom_an_address_stands_for(address: str, network: str) -> None:
    assert network_of(address) == network


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
    lockout = Lockout(2, 1_000, 60, clock)
    guess(lockout, "ann", "evil", 2)
    guess(lockout, "bob", "home", 1)
    clock.advance(60_000)
    outcomes = []
    for user, address in (("ann", "evil"), ("ann", "evil"), ("bob", "home"), ("ann", "home")):
        lockout.attempt(user, address)
        outcomes.append(lockout.succeeded(user, address))
    assert outcomes == [True, False, False, False]
