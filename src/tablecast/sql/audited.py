"""What a statement is called in the audit log, and what it is about. Names only: never its text, values or passwords."""

from __future__ import annotations

import re

from tablecast.codec.catalog import AuditEntry
from tablecast.engine.audit import Outcome, audit_entry
from tablecast.engine.catalog import Catalog
from tablecast.model.names import full_name
from tablecast.model.position import Start, StartKind
from tablecast.sql import statements as s
from tablecast.sql.context import Context, topic_name

_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")


def entry_of(statement: s.Statement, context: Context, outcome: Outcome = Outcome.OK, detail: str = "") -> AuditEntry:
    target = _target(statement, context.catalog, context.namespace)
    detail = detail or _detail(statement, target, context.namespace)
    return audit_entry(context.actor, action_of(statement), target, outcome, detail)


def action_of(statement: s.Statement) -> str:
    """CreateTopic is CREATE TOPIC."""
    return _WORD_START.sub(" ", type(statement).__name__).upper()


def _target(statement: s.Statement, catalog: Catalog, namespace: str) -> str:
    topic = getattr(statement, "topic", None)
    if isinstance(topic, s.TableName):
        return topic_name(catalog, topic, namespace)
    if isinstance(statement, s.Select):
        return ", ".join(sorted(full_name(table, namespace) for table in statement.tables))
    for attribute in ("table", "name", "user", "namespace"):
        named = getattr(statement, attribute, None)
        if named is not None:
            return full_name(named, namespace) if isinstance(named, s.TableName) else str(named)
    return ""


def _detail(statement: s.Statement, target: str, namespace: str) -> str:
    match statement:
        case s.CreateUser(role=role) | s.GrantRole(role=role):
            return f"role {role.name.lower()}"
        case s.AlterUser(role=role):
            return "password" if role is None else f"role {role.name.lower()}"
        case s.AddSource(table=table) | s.DropSource(table=table):
            return f"source {full_name(table, namespace)}"
        case s.RenameTopic(to=to):
            return f"to {full_name(to, target.partition('.')[0])}"
        case s.SetAlias(alias=alias):
            return "no alias" if alias is None else f"alias {alias}"
        case s.ResetGroup(group=group, to=to):
            return f"group {group!r} to {_place(to)}"
        case s.ExecuteAs(statements=statements):
            return ", ".join(action_of(inner) for inner in statements)
        case _:
            return ""


def _place(start: Start) -> str:
    named = start.kind in (StartKind.EARLIEST, StartKind.LATEST)
    return start.kind.name.lower() if named else f"{start.kind.name.lower()} {start.value}"
