"""Who signs in at a server, and with what.

    user       --user, else the address, else TABLECAST_USER, else `system`, the account every server has
    password   --password-file, else the address, else TABLECAST_PASSWORD, else asked for on the terminal
    token      --token, else TABLECAST_TOKEN, unless the command line names a user

What the command line says wins over the environment. A password never is an option of its own: other users of the
machine can read command lines. In an address it is accepted, since addresses come from configurations, but that is said.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tablecast.cli.console import say
from tablecast.cli.target import Target
from tablecast.errors import InvalidRequest, Unauthenticated

USER, PASSWORD, TOKEN = "TABLECAST_USER", "TABLECAST_PASSWORD", "TABLECAST_TOKEN"
DEFAULT_USER = "system"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user with a password, or a token."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


def credentials(target: Target, environment: Mapping[str, str] = os.environ) -> Credentials:
    parts = urlsplit(target.place)
    in_address = None if parts.username is None else unquote(parts.username)
    named = target.user or in_address
    if target.token is not None and (named or target.password_file):
        raise InvalidRequest("give a user with a password, or a token, not both")
    if target.user and in_address and target.user != in_address:
        raise InvalidRequest(f"--user is {target.user!r} and the address names {in_address!r}: give one of them")
    token = target.token or (None if named or target.password_file else environment.get(TOKEN))
    if token:
        return Credentials(token=token)
    user = named or environment.get(USER) or DEFAULT_USER
    return Credentials(user, _password(target, user, environment))


def _password(target: Target, user: str, environment: Mapping[str, str]) -> str:
    if target.password_file is not None:
        return read_password(target.password_file)
    in_address = urlsplit(target.place).password
    if in_address:
        say(f"a password in an address can be read by others on this machine: use {PASSWORD} or --password-file")
        return unquote(in_address)
    return environment.get(PASSWORD) or _asked(target, user)


def _asked(target: Target, user: str) -> str:
    if not sys.stderr.isatty():
        raise Unauthenticated(
            f"{target.address} takes a password for {user!r}: set {PASSWORD} or {TOKEN}, or give --password-file"
        )
    return getpass.getpass(f"password of {user} at {target.name}: ")


def read_password(file: Path) -> str:
    """The file's text, without the line end that editors add."""
    try:
        password = file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the password file {file} cannot be read: {error}") from None
    if not password:
        raise InvalidRequest(f"the password file {file} is empty")
    return password


def new_password(user: str) -> str:
    """One that is being set: asked for twice on a terminal, else the first line of standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    password = getpass.getpass(f"new password of {user}: ")
    if getpass.getpass("the same again: ") != password:
        raise InvalidRequest("the two passwords differ: nothing was changed")
    return password
