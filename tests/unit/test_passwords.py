"""Passwords: what is stored, what verifies, what is refused. That nobody costs as much as somebody is counted in hashes,
not in seconds."""

from __future__ import annotations

import argon2
import pytest

from tablecast.engine import passwords
from tablecast.engine.passwords import MAX_PASSWORD_BYTES, hash_password, is_hash, needs_rehash, verify_password
from tablecast.errors import CorruptData, InvalidRequest

SECRET = "correct horse"
WEAKER = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(SECRET)


def test_a_hash_tells_nothing_and_differs_each_time() -> None:
    first, second = hash_password(SECRET), hash_password(SECRET)
    assert first != second
    assert SECRET not in first
    assert first.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert verify_password(first, SECRET) and verify_password(second, SECRET)


@pytest.mark.parametrize("wrong", ["", "correct horsE", "correct horse ", "\ud800" * 8, "x" * (MAX_PASSWORD_BYTES + 1)])
def test_anything_else_is_wrong(wrong: str) -> None:
    assert not verify_password(hash_password(SECRET), wrong)


def test_nobody_has_no_password() -> None:
    assert not verify_password(None, SECRET)
    assert not verify_password(None, "")


@pytest.mark.parametrize(
    ("password", "why"),
    [("", "too short"), ("1234567", "at least 8"), ("x" * 1025, "at most 1024"), ("\ud800" * 8, "Unicode text")],
)
def test_what_may_not_be_a_password(password: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        hash_password(password)
    assert not password or password not in str(refused.value)


@pytest.mark.parametrize("password", ["12345678", "é" * 8, "x" * 1024, "with\x00zero", "       8"])
def test_what_may(password: str) -> None:
    assert verify_password(hash_password(password), password)


def test_a_hash_of_other_parameters_verifies_and_is_due_for_another() -> None:
    assert verify_password(WEAKER, SECRET)
    assert needs_rehash(WEAKER)
    assert not needs_rehash(hash_password(SECRET))


@pytest.mark.parametrize(
    "stored", ["", "plain text", "$argon2id$", WEAKER[:-30]], ids=["none", "text", "name", "cut off"]
)
def test_what_is_not_a_hash_is_corrupt(stored: str) -> None:
    with pytest.raises(CorruptData):
        verify_password(stored, SECRET)


def test_what_is_a_hash() -> None:
    assert is_hash(WEAKER) and is_hash(hash_password(SECRET))
    assert not is_hash("plain text") and not is_hash("")


class Counting:
    """Counts the hashes that argon2 computes."""

    def __init__(self, inner: argon2.PasswordHasher) -> None:
        self._inner, self.hashes = inner, 0

    def hash(self, password: bytes) -> str:
        self.hashes += 1
        return self._inner.hash(password)

    def verify(self, stored: str, password: bytes) -> bool:
        self.hashes += 1
        return self._inner.verify(stored, password)


@pytest.mark.parametrize("password", [SECRET, "wrong password", "", "\ud800"])
def test_a_check_costs_one_hash_whoever_it_is(password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = hash_password(SECRET)
    for somebody in (stored, None):
        counting = Counting(passwords._hasher)
        monkeypatch.setattr(passwords, "_hasher", counting)
        verify_password(somebody, password)
        assert counting.hashes == 1
