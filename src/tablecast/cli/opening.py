"""Opening what a command works on, and closing it however the command ends.

A local database and a client of a server have the same methods, so a command is written once for both. Whatever keeps a
server from being reached shows when it is opened, before a command has said or done anything.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from tablecast.cli.credentials import credentials
from tablecast.cli.target import Target
from tablecast.errors import (
    DatabaseLocked,
    InvalidRequest,
    TooManyRequests,
    Unauthenticated,
    Unreachable,
)

if TYPE_CHECKING:  # a command that speaks to a server does not wait for an engine to load, nor the other way round
    from tablecast.client.asynchronous import AsyncClient
    from tablecast.client.retry import Retry
    from tablecast.client.sync import Client
    from tablecast.sql.aio import AsyncDatabase
    from tablecast.sql.database import Database

Opened: TypeAlias = "Database | Client"
OpenedAsync: TypeAlias = "AsyncDatabase | AsyncClient"

ANSWER_SECONDS = 600.0  # for one answer; a person has Ctrl-C, and the server its own limit for statements
ATTEMPTS = 3  # within a second: a person would rather be told
ASK_IT = "give its address instead, e.g. http://127.0.0.1:8080"
STOP_IT = "stop that first"
CA_VARIABLE = "SSL_CERT_FILE"
_FIRST = "SELECT 1 AS one"


@contextmanager
def opened(target: Target) -> Iterator[Opened]:
    target.check()
    if target.is_server:
        with connected(target) as client:
            yield client
    else:
        with local(target.place) as database:
            yield database


@asynccontextmanager
async def opened_async(target: Target) -> AsyncIterator[OpenedAsync]:
    target.check()
    if target.is_server:
        async with _connected_async(target) as client:
            yield client
        return
    from tablecast.sql.aio import open_async

    with explained_lock(target.place, ASK_IT):
        found = await open_async(target.place, create=False)
    async with found:
        yield found


@contextmanager
def local(path: str, *, create: bool = False, instead: str = ASK_IT) -> Iterator[Database]:
    """Closed at the end also after an error or Ctrl-C: what DuckDB holds must go before the interpreter does."""
    from tablecast.sql import database

    with explained_lock(path, instead):
        found = database.open(path, create=create)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def explained_lock(path: str, instead: str) -> Iterator[None]:
    """`instead`: what to do if it is a server that has the database open, as it mostly is."""
    try:
        yield
    except DatabaseLocked:
        message = f"{path} is open in another process; if a server has it open, {instead}"
        raise DatabaseLocked(message, path=path) from None


# --- servers ----------------------------------------------------------------------------------------------------


@contextmanager
def connected(target: Target, namespace: str = "default") -> Iterator[Client]:
    """A client that has signed in."""
    who = credentials(target)
    trust(target)
    from tablecast.client.sync import connect

    with connect(
        target.address,
        user=who.user,
        password=who.password,
        token=who.token,
        namespace=namespace,
        timeout_seconds=ANSWER_SECONDS,
        retry=_retry(),
    ) as client:
        with explained_sign_in(target, who.user):
            client.query(_FIRST)
        yield client


@asynccontextmanager
async def _connected_async(target: Target) -> AsyncIterator[AsyncClient]:
    who = credentials(target)
    trust(target)
    from tablecast.client.asynchronous import connect_async

    async with await connect_async(
        target.address,
        user=who.user,
        password=who.password,
        token=who.token,
        timeout_seconds=ANSWER_SECONDS,
        retry=_retry(),
    ) as client:
        with explained_sign_in(target, who.user):
            await client.query(_FIRST)
        yield client


def _retry() -> Retry:
    from tablecast.client.retry import Retry

    return Retry(attempts=ATTEMPTS, backoff_seconds=0.1)


def trust(target: Target) -> None:
    """Makes `--ca` the authority whose certificates are believed. OpenSSL reads the variable when the first context for
    TLS is made, which is when the client is imported: so this comes first."""
    if target.ca is None:
        return
    try:
        ssl.create_default_context(cafile=target.ca)
    except OSError as error:  # ssl.SSLError, for what is no certificate, is one
        raise InvalidRequest(f"--ca {target.ca} cannot be used as a PEM file of certificates: {error}") from None
    os.environ[CA_VARIABLE] = str(target.ca)


@contextmanager
def explained_sign_in(target: Target, user: str | None) -> Iterator[None]:
    """Says what the first request met in terms of what was given on the command line."""
    try:
        yield
    except Unauthenticated as error:
        given = f"user {user!r}" if user is not None else "the token"
        raise Unauthenticated(f"{target.address} refused {given}: {error.message}") from None
    except TooManyRequests as error:
        raise type(error)(f"{target.address}: {error.message}") from None
    except Unreachable as error:
        raise Unreachable(f"{target.address} cannot be reached: {_reason(error, target)}") from None


def _reason(error: Unreachable, target: Target) -> str:
    """What kept the connection from being made, and what may help."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            hint = "if the authority that signed it is your own, name it with --ca FILE"
            return f"its certificate does not hold ({cause.verify_message}); {hint}"
        if isinstance(cause, ssl.SSLError):
            return "it does not speak TLS there; is the address http://…?"
        if isinstance(cause, OSError) and cause.errno:
            return f"{os.strerror(cause.errno) if cause.errno > 0 else cause.strerror}; is a server running there?"
    is_plain = urlsplit(target.place).scheme == "http"
    return "it hung up" + ("; is the address https://…?" if is_plain else "")


def _causes(error: BaseException) -> list[BaseException]:
    """The innermost first."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        found.insert(0, cause)
        cause = cause.__cause__
    return found
