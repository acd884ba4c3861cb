"""Tokens: what is signed, what is refused, single use, and the secret's file."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tablecast
from tablecast.errors import InvalidRequest, Unauthenticated
from tablecast.server.tokens import SECRET_BYTES, SECRET_FILE, Claims, Signer, SpendToken, load_secret
from tablecast.storage.base import StorageFailure
from tablecast.testing.clock import FakeClock

SECRET = b"s" * SECRET_BYTES


def access_token(signer: Signer, seconds: int = 60) -> str:
    return signer.issue("ann", "service", 7, "access", seconds, "f1")


def test_what_is_signed_is_read_back() -> None:
    clock = FakeClock()
    claims = Signer(SECRET, clock).read(access_token(Signer(SECRET, clock)), "access")
    now = clock() // 1000
    assert claims == Claims("ann", "service", 7, "access", now, now + 60, claims.jti, "f1")
    assert len(claims.jti) == 32


def test_no_two_tokens_have_the_same_name() -> None:
    signer = Signer(SECRET, FakeClock())
    assert len({signer.read(access_token(signer), "access").jti for _ in range(50)}) == 50


def test_a_token_ends_when_it_says() -> None:
    clock = FakeClock()
    signer = Signer(SECRET, clock)
    token = access_token(signer, seconds=60)
    clock.advance(59_999)
    signer.read(token, "access")
    clock.advance(1)
    with pytest.raises(Unauthenticated, match="the access token has expired; use the refresh token, or sign in again"):
        signer.read(token, "access")


def test_a_token_is_never_good_for_less_than_it_says() -> None:
    clock = FakeClock()
    clock.advance(700)  # claims are whole seconds: the end is rounded up
    signer = Signer(SECRET, clock)
    token = access_token(signer, seconds=1)
    clock.advance(999)
    signer.read(token, "access")
    clock.advance(1_000)
    with pytest.raises(Unauthenticated):
        signer.read(token, "access")


def test_neither_type_passes_for_the_other() -> None:
    signer = Signer(SECRET, FakeClock())
    refresh = signer.issue("ann", "service", 7, "refresh", 60, "f1")
    with pytest.raises(Unauthenticated, match="this is a token of type refresh; send the access token here"):
        signer.read(refresh, "access")
    with pytest.raises(Unauthenticated, match="this is a token of type access; send the refresh token here"):
        signer.read(access_token(signer), "refresh")


def part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def forged() -> dict[str, str]:
    clock = FakeClock()
    good = access_token(Signer(SECRET, clock))
    head, body, signature = good.split(".")
    claims = jwt.decode(good, options={"verify_signature": False})
    return {
        "another secret": access_token(Signer(b"t" * SECRET_BYTES, clock)),
        "another algorithm": jwt.encode(claims, b"s" * 64, "HS512"),
        "no algorithm": f"{part({'alg': 'none', 'typ': 'JWT'})}.{body}.",
        "other claims": f"{head}.{part(claims | {'sub': 'system'})}.{signature}",
        "no claims": jwt.encode({}, SECRET, "HS256"),
        "a claim of another type": jwt.encode(claims | {"epoch": "7"}, SECRET, "HS256"),
        "an unknown type": jwt.encode(claims | {"type": "admin"}, SECRET, "HS256"),
        "no signature": f"{head}.{body}.",
        "nothing": "",
        "no token": "a.b.c",
        "no text": "\udcff",
    }


@pytest.mark.parametrize("what", forged())
def test_what_we_did_not_sign_is_refused(what: str) -> None:
    with pytest.raises(Unauthenticated, match="this is not a token of this server; sign in again"):
        Signer(SECRET, FakeClock()).read(forged()[what], "access")


@given(st.text(max_size=60))
def test_any_text_is_refused_in_the_same_way(text: str) -> None:
    with pytest.raises(Unauthenticated):
        Signer(SECRET, FakeClock()).read(text, "access")


# --- single use -------------------------------------------------------------------------------------------------


def refresh_claims(jti: str, family: str = "f1", *, exp: int) -> Claims:
    return Claims("ann", "user", 1, "refresh", 0, exp, jti, family)


def test_a_token_is_spent_once_also_across_restarts(tmp_path: Path) -> None:
    clock = FakeClock()
    token = refresh_claims("a", exp=clock() // 1000 + 3 * 86_400)
    with tablecast.open(tmp_path / "db", clock=clock) as db:
        assert db.engine.execute(SpendToken(token)) is True
    clock.advance(2 * 86_400 * 1000)  # longer than any idempotency key is kept
    with tablecast.open(tmp_path / "db", clock=clock) as db:
        db.run_job("expiry")
        assert db.engine.execute(SpendToken(token)) is False
        assert db.verify().problems == []


def test_a_second_use_ends_the_whole_sign_in_and_no_other() -> None:
    clock = FakeClock()
    exp = clock() // 1000 + 60
    with tablecast.open(":memory:", clock=clock) as db:

        def spend(jti: str, family: str) -> bool:
            spent: bool = db.engine.execute(SpendToken(refresh_claims(jti, family, exp=exp)))
            return spent

        assert [spend("a", "f1"), spend("b", "f1")] == [True, True]
        assert spend("a", "f1") is False
        assert spend("c", "f1") is False, "of the same sign-in, never used"
        assert spend("d", "f2") is True


def test_what_is_spent_is_forgotten_when_the_token_has_ended() -> None:
    clock = FakeClock()
    with tablecast.open(":memory:", clock=clock) as db:
        db.engine.execute(SpendToken(refresh_claims("a", exp=clock() // 1000 + 60)))
        clock.advance(60_001)
        assert db.run_job("expiry").count == 1


# --- the secret -------------------------------------------------------------------------------------------------


def test_the_secret_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    secret = load_secret(tmp_path)
    assert len(secret) == SECRET_BYTES
    assert load_secret(tmp_path) == secret
    assert stat.S_IMODE((tmp_path / SECRET_FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_FILE]


def test_databases_have_secrets_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert load_secret(tmp_path / "a") != load_secret(tmp_path / "b")


def test_a_secret_half_written_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / f"{SECRET_FILE}.partial").write_bytes(b"x")
    assert len(load_secret(tmp_path)) == SECRET_BYTES


def test_a_secret_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    load_secret(tmp_path)
    file = tmp_path / SECRET_FILE
    file.chmod(0o644)
    with pytest.raises(InvalidRequest, match=f"can be read by others, .*: chmod 600 {file}"):
        load_secret(tmp_path)
    file.chmod(0o600)
    file.write_bytes(b"short")
    with pytest.raises(InvalidRequest, match="has 5 bytes instead of 32: remove it"):
        load_secret(tmp_path)
    with pytest.raises(StorageFailure, match="cannot be used: No such file or directory"):
        load_secret(tmp_path / "nowhere")
