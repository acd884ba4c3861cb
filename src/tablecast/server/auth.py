"""Who sends a request: passwords and tokens in, an `Actor` out.

A password costs tens of milliseconds of argon2, on purpose. So that a client with Basic credentials pays it once a
minute and not with every request, credentials found right are remembered, by a keyed hash, with the user's epoch: a
changed password or role, or a dropped user, ends what is remembered with the next request. Tokens are remembered in the
same way; their signature is checked once, and so is whether the sign-in they descend from was ended (server/tokens.py).

Passwords are checked on a few threads of their own, so that sign-ins cannot hold up statements, and few may wait for
them: further ones get `overloaded`. Equal credentials that arrive together are checked once, and count as one attempt.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tablecast.codec.catalog import User
from tablecast.engine.engine import system_clock
from tablecast.engine.users import MAX_USER_NAME_BYTES
from tablecast.errors import Overloaded, PermissionDenied, TablecastError, Unauthenticated
from tablecast.model.schema import Actor
from tablecast.server.limits import Buckets, Clock, Lockout, Recent, monotonic_clock, network_of
from tablecast.server.logs import current_request
from tablecast.server.settings import Settings
from tablecast.server.tokens import Claims, Signer, SpendToken, Tokens, is_ended
from tablecast.sql.completions import Completions
from tablecast.sql.database import Database

REMEMBERED_SECONDS = 60  # how long a password found right needs no second look
MAX_REMEMBERED = 10_000  # credentials; the one put first goes first
HASHING_THREADS = 2  # argon2 takes memory by design, and leaves the interpreter to others meanwhile
ENDED = "this sign-in has ended, because a refresh token of it was used twice; sign in again"
MAX_SIGN_INS = 64  # under way or waiting for those threads: about a second's worth

R = TypeVar("R")


class SignedIn(NamedTuple):
    """The sender of a request: who it is, and what ends that. `user` is the account as it was, without which no change
    of one does; of a token, `until_ms` is its end and `family` the sign-in that it descends from."""

    actor: Actor
    user: User | None = None
    until_ms: int | None = None
    family: str | None = None

    @classmethod
    def as_user(cls, user: User, until_ms: int | None = None, family: str | None = None) -> SignedIn:
        return cls(Actor(user.name, user.role), user, until_ms, family)


@dataclass(frozen=True, slots=True)
class _Verified:
    signed_in: SignedIn
    until_ms: int


class Authenticator:
    """Of one event loop."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        secret: bytes,
        *,
        clock: Clock = system_clock,
        monotonic: Clock = monotonic_clock,
    ) -> None:
        self._database = database
        self._settings = settings
        self._clock = clock
        self._signer = Signer(secret, clock)
        self._lockout = Lockout(
            settings.login_attempts, settings.login_attempts_per_address, settings.lockout_seconds, monotonic
        )
        self._users = Buckets("user", settings.requests_per_second_per_user, monotonic)
        self._addresses = Buckets("address", settings.requests_per_second_per_address, monotonic)
        self._remembered: Recent[bytes, _Verified] = Recent(MAX_REMEMBERED)
        self._hash_key = secrets.token_bytes(32)  # without it, what is remembered tells nothing about passwords
        self._checking: dict[tuple[bytes, str], asyncio.Task[User]] = {}
        self._sign_ins = 0
        self._ended: Recent[str, None] = Recent(MAX_REMEMBERED)  # sign-ins, lately; the database knows all of them
        self.sign_in_ended: Callable[[], None] = lambda: None  # called when one is
        self._pool = ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="tablecast-sign-in")

    # --- a request ---

    async def authenticate(self, authorization: str | None, address: str) -> Actor:
        """The sender of a request with this Authorization header, from this address.

        Raises Unauthenticated, RateLimited, LockedOut, or Overloaded.
        """
        return (await self.signed_in(authorization, address)).actor

    async def signed_in(self, authorization: str | None, address: str) -> SignedIn:
        """As `authenticate`, for what is served for longer than a moment."""
        address = network_of(address)
        self._addresses.take(address)
        if not authorization:
            raise Unauthenticated("this takes credentials: send an Authorization header, Basic or Bearer")
        key = self._hash(authorization)
        signed_in = self._recall(key) or await self._verify(authorization, key, address)
        self._users.take(signed_in.actor.user_id)
        return signed_in

    def is_current(self, signed_in: SignedIn) -> bool:
        """Whether the account is as it was, neither dropped nor given another password or role, and the sign-in not ended."""
        was, user = signed_in.user, self._user(signed_in.actor.user_id)
        if was is None:
            return True
        return user is not None and user.token_epoch == was.token_epoch and not self._is_ended(signed_in)

    def refused_now(self, signed_in: SignedIn) -> TablecastError | None:
        """What a new request with the same credentials would get, if it would be refused."""
        was, user = signed_in.user, self._user(signed_in.actor.user_id)
        if was is None or self.is_current(signed_in):
            return None
        name = was.name
        if self._is_ended(signed_in):
            return Unauthenticated(ENDED, user=name)
        if user is None or signed_in.family is not None or user.password != was.password:
            return Unauthenticated(f"the account {name} was changed or dropped; sign in again", user=name)
        if user.role < was.role:
            role = user.role.name.lower()
            return PermissionDenied(
                f"{name!r} has role {role} now, and had {was.role.name.lower()}", user=name, role=role
            )
        return None

    def _is_ended(self, signed_in: SignedIn) -> bool:
        return signed_in.family is not None and signed_in.family in self._ended

    def seconds_left(self, signed_in: SignedIn) -> float | None:
        return None if signed_in.until_ms is None else max(0.0, (signed_in.until_ms - self._clock()) / 1000)

    def count(self, actor: Actor) -> None:
        """One more request of somebody who is signed in. Raises RateLimited."""
        self._users.take(actor.user_id)

    async def _verify(self, authorization: str, key: bytes, address: str) -> SignedIn:
        scheme, _, credentials = authorization.partition(" ")
        if scheme.lower() == "basic":
            name, password = _basic(credentials.strip())
            return SignedIn.as_user(await self._check_password(name, password, key, address))
        if scheme.lower() == "bearer":
            claims = self._signer.read(credentials.strip(), "access")
            user = self._holder(claims)
            if is_ended(self._database.engine.store, claims):
                raise Unauthenticated(ENDED, user=user.name)
            signed_in = SignedIn.as_user(user, claims.exp * 1000, claims.fam)
            self._remembered.put(key, _Verified(signed_in, claims.exp * 1000))
            return signed_in
        raise Unauthenticated(f"the Authorization scheme {scheme[:20]!r} is unknown; use Basic or Bearer")

    def _recall(self, key: bytes) -> SignedIn | None:
        verified = self._remembered.get(key)
        if verified is None:
            return None
        if verified.until_ms <= self._clock() or not self.is_current(verified.signed_in):
            self._remembered.drop(key)
            return None
        return verified.signed_in

    # --- signing in ---

    async def login(self, user: str, password: str, address: str) -> Tokens:
        address = network_of(address)
        self._addresses.take(address)
        key = self._hash(encode_basic(user, password))
        return self._tokens(await self._check_password(user, password, key, address), secrets.token_hex(16))

    async def refresh(self, token: str, address: str) -> Tokens:
        """New tokens for a refresh token, which is used up. Used twice, it ends all tokens of its sign-in."""
        self._addresses.take(network_of(address))
        claims = self._signer.read(token, "refresh")
        user = self._holder(claims)
        longest_ms = 1000 * max(self._settings.access_token_seconds, self._settings.refresh_token_seconds)
        spend = SpendToken(claims, longest_ms)
        is_first_use = await Completions(self._database.engine, asyncio.get_running_loop()).submit(spend)
        if not is_first_use:
            if claims.fam not in self._ended:
                self._ended.put(claims.fam, None)
                self.sign_in_ended()
            raise Unauthenticated(ENDED, user=user.name)
        return self._tokens(user, claims.fam)

    def _tokens(self, user: User, family: str) -> Tokens:
        role = user.role.name.lower()
        issue, settings = self._signer.issue, self._settings
        return Tokens(
            issue(user.name, role, user.token_epoch, "access", settings.access_token_seconds, family),
            issue(user.name, role, user.token_epoch, "refresh", settings.refresh_token_seconds, family),
            settings.access_token_seconds,
            user.name,
            role,
        )

    def _holder(self, claims: Claims) -> User:
        """The user a token speaks for, if the token was made for the user as it is now."""
        user = self._user(claims.sub)
        if user is None or user.token_epoch != claims.epoch:
            raise Unauthenticated(f"the tokens of {claims.sub} from before have ended; sign in again", user=claims.sub)
        return user

    # --- passwords ---

    async def _check_password(self, name: str, password: str, key: bytes, address: str) -> User:
        """Those who ask for the same at the same time, from one address, share one check."""
        place = key, address
        checking = self._checking.get(place)
        if checking is None:
            checking = asyncio.create_task(self._check_now(name, password, key, address))
            self._checking[place] = checking
            checking.add_done_callback(lambda done: self._checked(place, done))
        # Shielded: one who goes away must not end the check of the others.
        return await asyncio.shield(checking)

    def _checked(self, place: tuple[bytes, str], done: asyncio.Task[User]) -> None:
        del self._checking[place]
        if not done.cancelled():
            done.exception()  # taken note of, for all who waited may have gone away

    async def _check_now(self, name: str, password: str, key: bytes, address: str) -> User:
        if len(name) > MAX_USER_NAME_BYTES:
            raise Unauthenticated(f"a user's name has at most {MAX_USER_NAME_BYTES} bytes")
        self._lockout.attempt(name, address)
        try:
            # The account as it was when the password was compared: what is remembered of an old one fits no new one.
            user = await self._in_pool(lambda: self._database.sign_in(name, password, request_id=_request_id()))
        except Unauthenticated:
            raise
        except BaseException:
            self._lockout.withdraw(name, address)
            raise
        if self._lockout.succeeded(name, address):
            await self._in_pool(lambda: self._audit_return(user, address))
        until_ms = self._clock() + REMEMBERED_SECONDS * 1000
        self._remembered.put(key, _Verified(SignedIn.as_user(user), until_ms))
        return user

    def _audit_return(self, user: User, address: str) -> None:
        """Somebody guessed until the door closed, and then knew: worth a look."""
        actor = Actor(user.name, user.role)
        self._database.audit(actor, "SIGN IN", detail=f"after a lock-out of {address}", request_id=_request_id())

    async def _in_pool(self, call: Callable[[], R]) -> R:
        if self._sign_ins >= MAX_SIGN_INS:
            raise Overloaded("too many sign-ins at a time; try again")
        self._sign_ins += 1
        try:
            context = copy_context()  # so that threads know the request they work for
            return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, call)
        finally:
            self._sign_ins -= 1

    def _user(self, name: str) -> User | None:
        return self._database.engine.catalog.users.get(name)

    def _hash(self, authorization: str) -> bytes:
        return hashlib.blake2b(authorization.encode("utf-8", "surrogatepass"), key=self._hash_key).digest()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _request_id() -> str | None:
    request = current_request()
    return None if request is None else request.request_id


def _basic(credentials: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, ValueError):
        raise Unauthenticated("Basic credentials are base64 of user:password in UTF-8; these are not") from None
    user, colon, password = text.partition(":")
    if not colon:
        raise Unauthenticated("Basic credentials are base64 of user:password; these have no colon")
    return user, password


def encode_basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogatepass")).decode()
