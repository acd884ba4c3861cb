"""Commands that change accounts. An account is a record of the catalog: name, role, and the hash of a password.

Who may: managing users takes dba (checked where the statement is planned), and nobody creates, alters or drops an
account above their own role, nor raises one above it. So only `system` makes a `system`. The account `system` itself
keeps its role and cannot be dropped.

`token_epoch` is the number of the commit that last changed the password or the role. Tokens carry it, so such a change
ends them; and since commit numbers never come twice, a token of a dropped account does not fit a new one of its name.

Rows of USER and STREAM tables belong to a name, and stay when its account is dropped. Such a name is remembered: until
those rows are deleted no account can be made of it, so nobody inherits them by chance. A name that never had an account
may own rows too, written for it by EXECUTE AS USER; those are its account's from the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import DroppedUser, User, encode_record
from tablecast.engine.ddl import Alone
from tablecast.engine.decision import Decision, Record, View
from tablecast.engine.rows import is_live
from tablecast.errors import AlreadyExists, InUse, InvalidRequest, PermissionDenied
from tablecast.model.schema import SYSTEM_ACTOR, Actor, Role
from tablecast.storage.base import Family

MAX_USER_NAME_BYTES = 255  # it is part of a key


def check_user_name(name: str) -> None:
    """Raises InvalidRequest. No colon: HTTP Basic ends the name at the first one."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0  # a lone surrogate is not text
    if not 1 <= size <= MAX_USER_NAME_BYTES or not name.isprintable() or ":" in name or name != name.strip():
        raise InvalidRequest(
            f"user {name!a}: a user's name is 1 to {MAX_USER_NAME_BYTES} bytes of printable text, "
            "without colons and without spaces at its ends",
            user=ascii(name),
        )


@dataclass(slots=True)
class CreateUser(Alone):
    """`password` is a hash; without one nobody can sign in as this user."""

    actor: Actor
    name: str
    role: Role = Role.USER
    password: str | None = field(default=None, repr=False)
    if_not_exists: bool = False

    def decide(self, view: View) -> Decision:
        check_user_name(self.name)
        _check_role(self.actor, self.name, self.role, f"creating {self.name!r} with role {self.role.name.lower()}")
        if self.name in view.catalog.users:
            if self.if_not_exists:
                return Decision(False)
            raise AlreadyExists(f"user {self.name!r} already exists; ALTER USER changes it", user=self.name)
        _check_not_left_behind(view, self.name)
        user = User(self.name, self.role, self.password, view.ts_ms, view.ts_ms, view.seq)
        forgotten: Record = (Family.META, records.dropped_user_key(self.name), None)
        return Decision(True, records=[_saved(user), forgotten], catalog=view.catalog.with_user(user))


@dataclass(slots=True)
class AlterUser(Alone):
    """A new role, a new password (as a hash), or both."""

    actor: Actor
    name: str
    role: Role | None = None
    password: str | None = field(default=None, repr=False)

    def decide(self, view: View) -> Decision:
        user = view.catalog.user(self.name)
        _check_role(self.actor, self.name, user.role, f"altering {self.name!r}, whose role is {user.role.name.lower()}")
        role = user.role if self.role is None else self.role
        _check_role(self.actor, self.name, role, f"granting {role.name.lower()}")
        if role is user.role and self.password is None:
            return Decision(False)
        password = user.password if self.password is None else self.password
        changed = User(self.name, role, password, user.created_ms, view.ts_ms, view.seq)
        return Decision(True, records=[_saved(changed)], catalog=view.catalog.with_user(changed))


@dataclass(slots=True)
class DropUser(Alone):
    actor: Actor
    name: str
    if_exists: bool = False

    def decide(self, view: View) -> Decision:
        if self.if_exists and self.name not in view.catalog.users:
            return Decision(False)
        role = view.catalog.user(self.name).role
        _check_role(self.actor, self.name, role, f"dropping {self.name!r}, whose role is {role.name.lower()}")
        if self.name == SYSTEM_ACTOR.user_id:
            raise InvalidRequest(f"the account {self.name!r} cannot be dropped: it is the last that can do everything")
        dropped: list[Record] = [(Family.META, records.user_key(self.name), None)]
        if tables_owned_by(view, self.name):
            left = DroppedUser(self.name, view.ts_ms)
            dropped.append((Family.META, records.dropped_user_key(self.name), encode_record(left)))
        return Decision(True, records=dropped, catalog=view.catalog.without_user(self.name))


@dataclass(slots=True)
class RehashPassword(Alone):
    """The same password under newer parameters. Nothing else changes, and nobody's tokens end."""

    name: str
    before: str = field(repr=False)
    after: str = field(repr=False)

    def decide(self, view: View) -> Decision:
        user = view.catalog.users.get(self.name)
        if user is None or user.password != self.before:
            return Decision(False)
        changed = msgspec.structs.replace(user, password=self.after)
        return Decision(True, records=[_saved(changed)], catalog=view.catalog.with_user(changed))


def tables_owned_by(view: View, name: str) -> list[str]:
    """USER and STREAM tables in which a user has rows."""
    found = []
    for table in view.catalog.tables.values():
        if table.schema.per_user:
            prefix = table.codec.prefix(name)
            rows = view.scan(Family.ROWS, prefix, keys.after(prefix))
            if any(is_live(table, value, view.ts_ms) for _, value in rows):
                found.append(table.schema.full_name)
    return sorted(found)


def _check_role(actor: Actor, name: str, role: Role, what: str) -> None:
    if name == SYSTEM_ACTOR.user_id and role is not Role.SYSTEM:
        raise InvalidRequest(f"the account {name!r} has role system and no other")
    if role > actor.role:
        raise PermissionDenied(
            f"{actor.user_id!r} has role {actor.role.name.lower()}; {what} takes {role.name.lower()} or above",
            user=actor.user_id,
            role=actor.role.name.lower(),
            needed=role.name.lower(),
        )


def _check_not_left_behind(view: View, name: str) -> None:
    if view.get(Family.META, records.dropped_user_key(name)) is None:
        return
    left = tables_owned_by(view, name)
    if left:
        raise InUse(
            f"a user {name!r} was dropped and left rows in {', '.join(left)}, which the new one would see as its own: "
            "EXECUTE AS USER … (DELETE …) removes them, or choose another name",
            user=name,
            tables=left,
        )


def _saved(user: User) -> Record:
    return Family.META, records.user_key(user.name), encode_record(user)
