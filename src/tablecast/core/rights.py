"""Who may do what, in one place.

    user < service < dba < system

SHARED tables: PUBLIC is read by every role, PRIVATE by service and above, RESTRICTED by dba and above; writing takes
service (dba for RESTRICTED). USER and STREAM tables are everybody's own. Topics: consuming takes service, managing dba,
as do tables, namespaces and users. System tables take service; those about people dba (`SYSTEM_TABLES` says which).
"""

from __future__ import annotations

from tablecast.errors import PermissionDenied
from tablecast.model.schema import AccessLevel, Actor, Role, TableSchema

_READ = {AccessLevel.PUBLIC: Role.USER, AccessLevel.PRIVATE: Role.SERVICE, AccessLevel.RESTRICTED: Role.DBA}


def require(actor: Actor, role: Role, what: str) -> None:
    if actor.role < role:
        raise PermissionDenied(
            f"{actor.user_id!r} has role {actor.role.name.lower()}; {what} takes {role.name.lower()} or above",
            user=actor.user_id,
            role=actor.role.name.lower(),
            needed=role.name.lower(),
        )


def require_read(actor: Actor, schema: TableSchema) -> None:
    if not schema.per_user:
        require(actor, _READ[schema.access_level], f"reading {schema.full_name} ({schema.access_level})")


def require_write(actor: Actor, schema: TableSchema) -> None:
    if not schema.per_user:
        needed = Role.DBA if schema.access_level is AccessLevel.RESTRICTED else Role.SERVICE
        require(actor, needed, f"writing {schema.full_name}")


def row_owner(actor: Actor, schema: TableSchema) -> str | None:
    """Whose rows the actor sees and writes."""
    return actor.user_id if schema.per_user else None
