"""Statements about accounts, as functions (statement, context) -> Result.

A password is hashed here, in the caller's thread, after the caller's right to set it was checked: what goes on to the
writer is the hash alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tablecast.codec.result import Result
from tablecast.engine import users
from tablecast.engine.passwords import hash_password
from tablecast.sql import statements as s
from tablecast.sql.context import Context
from tablecast.sql.plan_ddl import carry_out, permit


def create_user(statement: s.CreateUser, context: Context) -> Result:
    permit(context, "CREATE USER")
    users.check_user_name(statement.name)
    hashed = hash_password(statement.password)
    command = users.CreateUser(context.actor, statement.name, statement.role, hashed, statement.if_not_exists)
    return carry_out(statement, context, command, "CREATE USER")


def alter_user(statement: s.AlterUser, context: Context) -> Result:
    permit(context, "ALTER USER")
    hashed = None if statement.password is None else hash_password(statement.password)
    command = users.AlterUser(context.actor, statement.name, statement.role, hashed)
    return carry_out(statement, context, command, "ALTER USER")


def drop_user(statement: s.DropUser, context: Context) -> Result:
    permit(context, "DROP USER")
    return carry_out(
        statement, context, users.DropUser(context.actor, statement.name, statement.if_exists), "DROP USER"
    )


def grant_role(statement: s.GrantRole, context: Context) -> Result:
    permit(context, "GRANT ROLE")
    return carry_out(statement, context, users.AlterUser(context.actor, statement.user, statement.role), "GRANT ROLE")


USERS: dict[type[s.Statement], Callable[[Any, Context], Result]] = {
    s.CreateUser: create_user,
    s.AlterUser: alter_user,
    s.DropUser: drop_user,
    s.GrantRole: grant_role,
}
