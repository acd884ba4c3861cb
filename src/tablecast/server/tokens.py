"""Tokens: JSON Web Tokens signed with HMAC-SHA-256, and the secret that signs them.

    claim    meaning
    sub      the user
    role     the role it had; informative: what counts is the role it has
    epoch    which passwords and roles of the user it belongs to: a change of either ends it
    type     "access" or "refresh": neither passes for the other
    iat exp  issued and good until, in seconds
    jti      the token's own name
    fam      the sign-in it descends from

A refresh token is good for one use. Using it is a durable record of the same kind as an idempotency key, kept until the
token would have ended, so that a restart does not make it good again. If it comes a second time, one of the two who
hold it stole it: then every token of that sign-in ends, access tokens too. That is durable as well, and kept for as long
as any of them could be good.

This module is the only import of jwt.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import jwt
import msgspec
from jwt.types import Options

from tablecast.codec.keys import expiry_key
from tablecast.engine.decision import Decision, Record, View
from tablecast.engine.idempotency import Remembered, encode_remembered, idempotency_key, may_be_known, recall
from tablecast.errors import InvalidRequest, Unauthenticated
from tablecast.server.limits import Clock
from tablecast.storage.base import Family, Reader, StorageFailure
from tablecast.storage.home import PARTIAL, sync_directory

ALGORITHM: Final = "HS256"
SECRET_FILE: Final = "TOKEN_SECRET"
SECRET_BYTES: Final = 32  # as long as the hash: a longer one adds nothing
# Times are judged by our own clock, in `Signer.read`.
_SIGNATURE_ONLY: Final[Options] = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_aud": False}
_SPENT: Final = b"refresh token"

TokenType = Literal["access", "refresh"]


class Claims(msgspec.Struct, frozen=True):
    sub: str
    role: str
    epoch: int
    type: TokenType
    iat: int
    exp: int
    jti: str
    fam: str


class Tokens(msgspec.Struct, frozen=True):
    """The answer to a sign-in."""

    access_token: str
    refresh_token: str
    expires_in: int
    user: str
    role: str
    token_type: str = "Bearer"


class Signer:
    """Makes tokens and reads them."""

    def __init__(self, secret: bytes, clock: Clock) -> None:
        self._secret = secret
        self._clock = clock

    def sign(self, claims: Claims) -> str:
        return jwt.encode(msgspec.structs.asdict(claims), self._secret, ALGORITHM)

    def issue(self, user: str, role: str, epoch: int, kind: TokenType, seconds: int, family: str) -> str:
        """A token that is good for that many seconds: claims are whole seconds, so its end is rounded up."""
        now_ms = self._clock()
        until = -(-now_ms // 1000) + seconds
        return self.sign(Claims(user, role, epoch, kind, now_ms // 1000, until, secrets.token_hex(16), family))

    def read(self, token: str, kind: TokenType) -> Claims:
        """The claims of a token that we signed, of this kind, and that is not over."""
        claims = self._verified(token)
        if claims.type != kind:
            raise Unauthenticated(f"this is a token of type {claims.type}; send the {kind} token here")
        if claims.exp * 1000 <= self._clock():
            raise Unauthenticated(f"the {kind} token has expired; {_RENEW[kind]}")
        return claims

    def _verified(self, token: str) -> Claims:
        try:
            found = jwt.decode(token, self._secret, algorithms=[ALGORITHM], options=_SIGNATURE_ONLY)
            return msgspec.convert(found, Claims)
        except (jwt.InvalidTokenError, msgspec.ValidationError, ValueError):
            raise Unauthenticated("this is not a token of this server; sign in again") from None


_RENEW: Final = {"access": "use the refresh token, or sign in again", "refresh": "sign in again"}


# --- single use -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SpendToken:
    """Uses up a refresh token. Answers True the first time, and False from then on for all tokens of the sign-in."""

    claims: Claims
    longest_ms: int = 0  # how long any token that was issued until now may be good
    weight: int = 1

    def decide(self, view: View) -> Decision:
        token, family = f"token:{self.claims.jti}", _sign_in(self.claims)
        if self._known(view, family):
            return Decision(False)
        if self._known(view, token):
            until_ms = max(self.claims.exp * 1000, view.ts_ms + self.longest_ms + 1000)  # an end is rounded up
            return Decision(False, records=self._mark(view, family, until_ms))
        return Decision(True, records=self._mark(view, token, self.claims.exp * 1000))

    def _known(self, view: View, key: str) -> bool:
        return recall(view, self.claims.sub, key, _SPENT) is not None

    def _mark(self, view: View, key: str, expires_ms: int) -> list[Record]:
        stored = idempotency_key(self.claims.sub, key)
        return [
            (Family.KEYS, stored, encode_remembered(Remembered(_SPENT, expires_ms, view.seq, 0))),
            (Family.EXPIRY, expiry_key(expires_ms, Family.KEYS, stored), b""),
        ]


def is_ended(reader: Reader, claims: Claims) -> bool:
    """Whether the sign-in that a token descends from was ended."""
    return may_be_known(reader, claims.sub, _sign_in(claims))


def _sign_in(claims: Claims) -> str:
    return f"sign-in:{claims.fam}"


# --- the secret -------------------------------------------------------------------------------------------------


def load_secret(directory: Path) -> bytes:
    """The secret of a database's directory, made when it is first asked for.

    A file of its own, not a record: a backup, which many may read, then lets nobody sign tokens.
    """
    path = directory / SECRET_FILE
    try:
        if not path.exists():
            _create(path)
        return _read(path)
    except OSError as error:
        raise StorageFailure(f"the secret of tokens, {path}, cannot be used: {error.strerror}") from error


def _create(path: Path) -> None:
    partial = path.with_name(path.name + PARTIAL)
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES))
        file.flush()
        os.fsync(descriptor)
    partial.replace(path)
    sync_directory(path.parent)


def _read(path: Path) -> bytes:
    if path.stat().st_mode & 0o077:
        raise InvalidRequest(f"{path} can be read by others, who could sign tokens with it: chmod 600 {path}")
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise InvalidRequest(
            f"{path} has {len(secret)} bytes instead of {SECRET_BYTES}: remove it, and all tokens end and a new one is made"
        )
    return secret
