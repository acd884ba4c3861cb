"""`tablecast user`: accounts, through the SQL statements that manage them."""

from __future__ import annotations

import sys

from tablecast.cli.console import visible
from tablecast.cli.credentials import new_password
from tablecast.cli.opening import opened
from tablecast.cli.options import Format
from tablecast.cli.render import render
from tablecast.cli.target import Target

_USERS = "SELECT name, role, can_sign_in, created_at, changed_at FROM system.users ORDER BY name"


def show_users(target: Target, form: Format) -> None:
    with opened(target) as database:
        render(database.query(_USERS), form)


def add_user(target: Target, name: str, role: str) -> None:
    with opened(target) as database:  # first: nobody types a password twice for a server that is not there
        password = new_password(name)
        database.execute(f"CREATE USER {quoted(name)} WITH PASSWORD {quoted(password)} ROLE {quoted(role)}")
    _tell(f"added {name} with role {role}")


def set_password(target: Target, name: str) -> None:
    with opened(target) as database:
        database.execute(f"ALTER USER {quoted(name)} SET PASSWORD {quoted(new_password(name))}")
    _tell(f"changed the password of {name}")


def set_role(target: Target, name: str, role: str) -> None:
    with opened(target) as database:
        database.execute(f"ALTER USER {quoted(name)} SET ROLE {quoted(role)}")
    _tell(f"{name} has role {role}")


def drop_user(target: Target, name: str) -> None:
    with opened(target) as database:
        database.execute(f"DROP USER {quoted(name)}")
    _tell(f"dropped {name}")


def quoted(text: str) -> str:
    """As a string of SQL: these statements take no parameters."""
    return "'" + text.replace("'", "''") + "'"


def _tell(text: str) -> None:
    sys.stdout.write(visible(text) + "\n")
