"""The authenticator over a real database: who gets in, for how long, and who does not."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

import tablecast
from tablecast.errors import LockedOut, RateLimited, TablecastError, Unauthenticated
from tablecast.model.schema import Actor, Role
from tablecast.server.auth import MAX_SIGN_INS, REMEMBERED_SECONDS, Authenticator
from tablecast.server.settings import Settings
from tablecast.testing.clock import FakeClock

SECRET = b"s" * 32
HOME = "10.0.0.1"
PASSWORD = "correct horse"
ANN = Actor("ann", Role.SERVICE)


def basic(user: str = "ann", password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Door:
    """An authenticator, its database and its clocks."""

    def __init__(self, db: tablecast.Database, clock: FakeClock, settings: Settings) -> None:
        self.db = db
        self.clock = clock
        self.settings = settings
        self.auth = Authenticator(db, settings, SECRET, clock=clock, monotonic=clock)

    async def enter(self, authorization: str | None, address: str = HOME) -> Actor:
        return await self.auth.authenticate(authorization, address)

    def audited(self, outcome: str) -> list[str]:
        """The details of the sign-ins in the audit log that ended so."""
        self.db.execute("CREATE NAMESPACE IF NOT EXISTS app")  # entries are not waited for, but come in order
        sql = "SELECT detail FROM system.audit_log WHERE action = 'SIGN IN' AND outcome = ?"
        return [detail for (detail,) in self.db.query(sql, [outcome]).rows]


@asynccontextmanager
async def door(**settings: object) -> AsyncIterator[Door]:
    clock = FakeClock()
    with tablecast.open(":memory:", clock=clock, jobs_interval_seconds=3_600) as db:
        db.execute(f"CREATE USER 'ann' WITH PASSWORD '{PASSWORD}' ROLE 'service'")
        found = Door(db, clock, Settings(**settings))  # type: ignore[arg-type]
        try:
            yield found
        finally:
            found.auth.close()


def of_a_door(**settings: object) -> Callable[[Callable[[Door], Awaitable[None]]], Callable[[], None]]:
    """A test of a door of its own, with these settings."""

    def decorate(body: Callable[[Door], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            async with door(**settings) as found:
                await body(found)

        return lambda: asyncio.run(run())

    return decorate


async def code_of(entering: Awaitable[object]) -> str:
    try:
        await entering
    except TablecastError as error:
        return error.code
    return "ok"


# --- the header -------------------------------------------------------------------------------------------------


@of_a_door()
async def test_a_right_password_is_an_actor(door: Door) -> None:
    assert await door.enter(basic()) == ANN
    assert await door.enter(basic().replace("Basic", "bASIC")) == ANN


@of_a_door(login_attempts=1_000)
async def test_what_is_no_credentials_is_refused(door: Door) -> None:
    for header, said in (
        (None, "this takes credentials: send an Authorization header, Basic or Bearer"),
        ("", "this takes credentials"),
        ("Digest x", "the Authorization scheme 'Digest' is unknown; use Basic or Bearer"),
        ("Basic", "these have no colon"),
        ("Basic !!!", "Basic credentials are base64 of user:password in UTF-8; these are not"),
        ("Basic " + base64.b64encode(b"\xff:x").decode(), "in UTF-8; these are not"),
        ("Basic " + base64.b64encode(b"ann").decode(), "these have no colon"),
        ("Bearer", "this is not a token of this server"),
        (basic("ann", "wrong password"), "the user name or the password is wrong"),
        (basic("nobody"), "the user name or the password is wrong"),
        (basic("a" * 256), "a user's name has at most 255 bytes"),
    ):
        with pytest.raises(Unauthenticated, match=said):
            await door.enter(header)


@of_a_door()
async def test_a_password_may_hold_colons_and_any_text(door: Door) -> None:
    door.db.execute("CREATE USER 'bob' WITH PASSWORD 'a:b:c:ünï:'")
    assert await door.enter(basic("bob", "a:b:c:ünï:")) == Actor("bob", Role.USER)


# --- what is remembered -----------------------------------------------------------------------------------------


@of_a_door(login_attempts=1)
async def test_a_right_password_is_not_compared_again_for_a_while(door: Door) -> None:
    await door.enter(basic())
    assert await code_of(door.enter(basic(password="wrong password"))) == "unauthenticated"
    # Locked out now, and yet: what is remembered needs no look at the password.
    assert await door.enter(basic()) == ANN
    door.clock.advance(REMEMBERED_SECONDS * 1000)
    assert await code_of(door.enter(basic())) == "locked_out"


@of_a_door()
async def test_a_changed_account_ends_what_is_remembered(door: Door) -> None:
    token = "Bearer " + (await door.auth.login("ann", PASSWORD, HOME)).access_token
    assert [await door.enter(basic()), await door.enter(token)] == [ANN, ANN]
    door.db.execute("ALTER USER 'ann' SET ROLE 'dba'")
    assert await door.enter(basic()) == Actor("ann", Role.DBA)
    assert await code_of(door.enter(token)) == "unauthenticated"
    door.db.execute("ALTER USER 'ann' SET PASSWORD 'another horse'")
    assert await code_of(door.enter(basic())) == "unauthenticated"
    assert await door.enter(basic(password="another horse")) == Actor("ann", Role.DBA)
    door.db.execute("DROP USER 'ann'")
    assert await code_of(door.enter(basic(password="another horse"))) == "unauthenticated"


@of_a_door(login_attempts=2)
async def test_equal_credentials_at_once_are_one_attempt(door: Door) -> None:
    assert await asyncio.gather(*(door.enter(basic()) for _ in range(200))) == [ANN] * 200
    wrong = [code_of(door.enter(basic(password="wrong password"))) for _ in range(200)]
    assert set(await asyncio.gather(*wrong)) == {"unauthenticated"}
    assert len(door.audited("failed")) == 1


@of_a_door(login_attempts=3)
async def test_different_guesses_at_once_are_all_counted(door: Door) -> None:
    codes = await asyncio.gather(*(code_of(door.enter(basic(password=f"wrong {n} …"))) for n in range(50)))
    assert sorted(set(codes)) == ["locked_out", "unauthenticated"]
    assert codes.count("unauthenticated") == 3
    assert len(door.audited("failed")) == 3


@of_a_door()
async def test_one_who_goes_away_does_not_end_the_check_of_another(door: Door) -> None:
    first, second = (asyncio.create_task(door.enter(basic())) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ANN


@of_a_door(login_attempts=1_000)
async def test_too_many_sign_ins_at_once_are_refused_and_do_not_count(door: Door) -> None:
    entering = [code_of(door.enter(basic(f"user {n}"))) for n in range(MAX_SIGN_INS + 30)]
    codes = await asyncio.gather(*entering)
    assert codes == ["unauthenticated"] * MAX_SIGN_INS + ["overloaded"] * 30
    with pytest.raises(Unauthenticated):
        await door.enter(basic("user 0"))


# --- lock-out and rates -----------------------------------------------------------------------------------------


@of_a_door(login_attempts=3, lockout_seconds=60)
async def test_a_lock_out_holds_against_the_right_password_and_ends(door: Door) -> None:
    for n in range(3):
        assert await code_of(door.auth.login("ann", f"wrong {n} …", HOME)) == "unauthenticated"
    with pytest.raises(LockedOut) as caught:
        await door.auth.login("ann", PASSWORD, HOME)
    assert caught.value.details["retry_after_seconds"] == 60
    assert await code_of(door.enter(basic())) == "locked_out"
    assert await door.enter(basic(), "10.0.0.2") == ANN, "from elsewhere"
    door.clock.advance(60_000)
    assert (await door.auth.login("ann", PASSWORD, HOME)).user == "ann"
    assert door.audited("ok") == [f"after a lock-out of {HOME}"]


@of_a_door(login_attempts_per_address=5)
async def test_sign_in_cannot_be_shut_for_anybody_elsewhere(door: Door) -> None:
    """By wrong passwords from many addresses, for one name and for many."""
    for n in range(20):
        await asyncio.gather(*(code_of(door.enter(basic("ann", f"wrong {n} {i}"), f"10.1.0.{n}")) for i in range(5)))
    assert await door.enter(basic(), "10.2.0.1") == ANN


@of_a_door(login_attempts_per_address=5)
async def test_an_address_that_used_up_its_budget_costs_no_more_hashes(door: Door) -> None:
    codes = [await code_of(door.enter(basic(f"user {n}", "wrong password"), f"2001:db8::{n:x}")) for n in range(20)]
    assert codes == ["unauthenticated"] * 5 + ["locked_out"] * 15, "one network of IPv6 is one address"
    assert len(door.audited("failed")) == 5, "each that is looked at is audited"
    assert await code_of(door.enter(basic(), "2001:db8::ffff")) == "locked_out"
    assert await door.enter(basic(), "2001:db8:0:1::1") == ANN


@of_a_door(login_attempts=1)
async def test_equal_credentials_from_two_addresses_share_no_refusal(door: Door) -> None:
    await code_of(door.enter(basic(password="wrong password"), "10.0.0.9"))
    codes = await asyncio.gather(*(code_of(door.enter(basic(), address)) for address in ("10.0.0.9", "10.0.0.8")))
    assert codes == ["locked_out", "ok"]


@of_a_door(login_attempts=1)
async def test_users_who_do_not_exist_are_locked_out_alike(door: Door) -> None:
    codes = [await code_of(door.enter(basic(name, "wrong password"))) for name in ("ann", "nobody") for _ in range(2)]
    assert codes == ["unauthenticated", "locked_out"] * 2


@of_a_door(requests_per_second_per_user=5)
async def test_a_users_requests_are_counted_wherever_they_come_from(door: Door) -> None:
    token = "Bearer " + (await door.auth.login("ann", PASSWORD, HOME)).access_token
    for n in range(5):
        await door.enter((basic(), token)[n % 2], f"10.0.0.{n}")
    with pytest.raises(RateLimited, match="user ann makes more than 5 requests a second"):
        await door.enter(token)
    door.clock.advance(200)
    await door.enter(token)


@of_a_door(requests_per_second_per_address=2)
async def test_an_addresss_requests_are_counted_signed_in_or_not(door: Door) -> None:
    codes = [await code_of(door.enter(None)) for _ in range(3)]
    assert codes == ["unauthenticated", "unauthenticated", "rate_limited"]
    assert await code_of(door.auth.login("ann", PASSWORD, HOME)) == "rate_limited"
    assert await code_of(door.auth.refresh("x", HOME)) == "rate_limited"
    assert await door.enter(basic(), "10.0.0.2") == ANN


# --- tokens -----------------------------------------------------------------------------------------------------


@of_a_door(access_token_seconds=100)
async def test_a_token_speaks_for_its_user_until_it_ends(door: Door) -> None:
    tokens = await door.auth.login("ann", PASSWORD, HOME)
    assert (tokens.user, tokens.role, tokens.expires_in, tokens.token_type) == ("ann", "service", 100, "Bearer")
    for seconds, code in ((0, "ok"), (99, "ok"), (1, "unauthenticated")):
        door.clock.advance(seconds * 1000)
        assert await code_of(door.enter(f"Bearer {tokens.access_token}")) == code
    assert await code_of(door.enter(f"Bearer {tokens.refresh_token}")) == "unauthenticated"


@of_a_door()
async def test_a_refresh_token_is_good_for_one_use(door: Door) -> None:
    first = await door.auth.login("ann", PASSWORD, HOME)
    second = await door.auth.refresh(first.refresh_token, HOME)
    assert await door.enter(f"Bearer {second.access_token}") == ANN
    assert second.refresh_token != first.refresh_token
    with pytest.raises(Unauthenticated, match="was used twice; sign in again"):
        await door.auth.refresh(first.refresh_token, HOME)
    assert await code_of(door.auth.refresh(second.refresh_token, HOME)) == "unauthenticated", "one of them was stolen"


@of_a_door()
async def test_access_tokens_end_with_their_sign_in_also_after_a_restart(door: Door) -> None:
    first, other = [await door.auth.login("ann", PASSWORD, HOME) for _ in range(2)]
    second = await door.auth.refresh(first.refresh_token, HOME)
    assert await door.enter(f"Bearer {first.access_token}") == ANN
    assert await code_of(door.auth.refresh(first.refresh_token, HOME)) == "unauthenticated"
    restarted = Authenticator(door.db, door.settings, SECRET, clock=door.clock)
    for auth in (door.auth, restarted):
        for tokens, code in ((first, "unauthenticated"), (second, "unauthenticated"), (other, "ok")):
            assert await code_of(auth.authenticate(f"Bearer {tokens.access_token}", HOME)) == code
    restarted.close()


@of_a_door(refresh_token_seconds=1_000)
async def test_a_sign_in_stays_ended_for_as_long_as_any_token_of_it_could_be_good(door: Door) -> None:
    """The token that is used twice ends before those that came from it."""
    first = await door.auth.login("ann", PASSWORD, HOME)
    door.clock.advance(900_000)
    second = await door.auth.refresh(first.refresh_token, HOME)
    assert await code_of(door.auth.refresh(first.refresh_token, HOME)) == "unauthenticated"
    door.clock.advance(500_000)  # the first has ended, the second has not
    door.db.run_job("expiry")
    assert await code_of(door.auth.refresh(second.refresh_token, HOME)) == "unauthenticated"
    assert await code_of(door.enter(f"Bearer {second.access_token}")) == "unauthenticated"


@of_a_door()
async def test_of_two_uses_at_once_one_wins(door: Door) -> None:
    token = (await door.auth.login("ann", PASSWORD, HOME)).refresh_token
    codes = await asyncio.gather(*(code_of(door.auth.refresh(token, HOME)) for _ in range(10)))
    assert sorted(codes) == ["ok"] + ["unauthenticated"] * 9


@of_a_door(refresh_token_seconds=1_000)
async def test_a_refresh_token_ends_with_its_time_and_with_its_account(door: Door) -> None:
    tokens = [await door.auth.login("ann", PASSWORD, HOME) for _ in range(3)]
    assert await code_of(door.auth.refresh(tokens[0].access_token, HOME)) == "unauthenticated", "no refresh token"
    door.clock.advance(1_000_000)
    assert await code_of(door.auth.refresh(tokens[0].refresh_token, HOME)) == "unauthenticated"
    fresh = await door.auth.login("ann", PASSWORD, HOME)
    door.db.execute("DROP USER 'ann'")
    door.db.execute(f"CREATE USER 'ann' WITH PASSWORD '{PASSWORD}' ROLE 'service'")
    with pytest.raises(Unauthenticated, match="the tokens of ann from before have ended"):
        await door.auth.refresh(fresh.refresh_token, HOME)
    assert await code_of(door.enter(f"Bearer {fresh.access_token}")) == "unauthenticated"


@of_a_door()
async def test_tokens_outlive_the_server_if_the_secret_does(door: Door) -> None:
    token = "Bearer " + (await door.auth.login("ann", PASSWORD, HOME)).access_token
    again = Authenticator(door.db, door.settings, SECRET, clock=door.clock)
    other = Authenticator(door.db, door.settings, b"t" * 32, clock=door.clock)
    assert await again.authenticate(token, HOME) == ANN
    assert await code_of(other.authenticate(token, HOME)) == "unauthenticated"
    again.close()
    other.close()


@of_a_door(login_attempts=1)
async def test_a_database_that_fails_counts_against_nobody(door: Door) -> None:
    door.db.close()
    assert [await code_of(door.enter(basic())) for _ in range(3)] == ["database_closed"] * 3
