"""Looking around, jobs, transactions, users.

    SHOW NAMESPACES        SHOW TABLES [IN namespace]        SHOW TOPICS [IN namespace]
    DESCRIBE | DESC [TABLE] table        DESCRIBE | DESC TOPIC topic
    BEGIN [TRANSACTION | WORK]       START TRANSACTION
    COMMIT [TRANSACTION | WORK]      ROLLBACK [TRANSACTION | WORK]
    CREATE USER [IF NOT EXISTS] 'name' WITH PASSWORD 'password' [ROLE 'role']
    ALTER USER 'name' SET PASSWORD 'password' | ROLE 'role'
    DROP USER [IF EXISTS] 'name'
    GRANT ROLE 'role' TO 'name'
    CANCEL JOB 'name'

    role = user | service | dba | system

User names are strings, since they need not be names in the sense of SQL: 'ann@example.org' is one.
"""

from __future__ import annotations

from tablecast.errors import InvalidRequest
from tablecast.model.schema import Role
from tablecast.sql.parse_pipeline import parse_describe_pipeline
from tablecast.sql.statements import (
    AlterUser,
    Begin,
    CancelJob,
    Commit,
    CreateUser,
    Describe,
    DescribePipeline,
    DescribeTopic,
    DropUser,
    GrantRole,
    Rollback,
    ShowNamespaces,
    ShowTables,
    ShowTopics,
    TableName,
)
from tablecast.sql.tokens import SYSTEM_NAMESPACE, Cursor, check_dotted, check_name

# --- looking around ---


def parse_show_namespaces(cursor: Cursor) -> ShowNamespaces:
    cursor.end()
    return ShowNamespaces()


def parse_show_tables(cursor: Cursor) -> ShowTables:
    return ShowTables(_in_namespace(cursor))


def parse_show_topics(cursor: Cursor) -> ShowTopics:
    return ShowTopics(_in_namespace(cursor))


def _in_namespace(cursor: Cursor) -> str | None:
    namespace = cursor.name("namespace") if cursor.take("IN") or cursor.take("FROM") else None
    cursor.end("IN namespace or the end of the statement")
    return namespace


def parse_describe(cursor: Cursor) -> Describe | DescribeTopic | DescribePipeline:
    following = cursor.words[2:3]
    if following and following[0].text != "." and cursor.take("TOPIC"):
        topic = cursor.topic()
        cursor.end()
        return DescribeTopic(topic)
    if following and following[0].text != "." and cursor.take("PIPELINE"):
        return parse_describe_pipeline(cursor)
    cursor.take("TABLE")
    table = _any_table(cursor)
    cursor.end()
    return Describe(table)


def _any_table(cursor: Cursor) -> TableName:
    """System tables too: they can be looked at, though not written."""
    parts = cursor.dotted("table")
    if len(parts) == 2 and parts[0] == SYSTEM_NAMESPACE:
        return TableName(SYSTEM_NAMESPACE, check_name(parts[1], "table"))
    return check_dotted(parts, "table")


# --- jobs ---


def parse_cancel_job(cursor: Cursor) -> CancelJob:
    name = cursor.label("job")
    cursor.end()
    return CancelJob(name)


# --- transactions ---


def parse_begin(cursor: Cursor) -> Begin:
    _end_of_transaction_word(cursor)
    return Begin()


def parse_commit(cursor: Cursor) -> Commit:
    _end_of_transaction_word(cursor)
    return Commit()


def parse_rollback(cursor: Cursor) -> Rollback:
    _end_of_transaction_word(cursor)
    return Rollback()


def _end_of_transaction_word(cursor: Cursor) -> None:
    if not cursor.take("TRANSACTION"):
        cursor.take("WORK")
    cursor.end()


# --- users ---


def parse_create_user(cursor: Cursor) -> CreateUser:
    exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.label("user")
    cursor.expect("WITH", "PASSWORD")
    password = _password(cursor)
    role = _role(cursor) if cursor.take("ROLE") else Role.USER
    cursor.end("ROLE or the end of the statement")
    return CreateUser(name, password, role, exists)


def parse_alter_user(cursor: Cursor) -> AlterUser:
    name = cursor.label("user")
    cursor.expect("SET")
    if cursor.take("PASSWORD"):
        user = AlterUser(name, password=_password(cursor))
    elif cursor.take("ROLE"):
        user = AlterUser(name, role=_role(cursor))
    else:
        raise cursor.fail("PASSWORD or ROLE")
    cursor.end()
    return user


def parse_drop_user(cursor: Cursor) -> DropUser:
    exists = cursor.take("IF", "EXISTS")
    name = cursor.label("user")
    cursor.end()
    return DropUser(name, exists)


def parse_grant_role(cursor: Cursor) -> GrantRole:
    role = _role(cursor)
    cursor.expect("TO")
    user = cursor.label("user")
    cursor.end()
    return GrantRole(role, user)


def _password(cursor: Cursor) -> str:
    password = cursor.string("the password")
    if not password:
        raise InvalidRequest("the password is empty")
    return password


def _role(cursor: Cursor) -> Role:
    text = cursor.string("the role")
    if text.upper() not in Role.__members__:
        roles = ", ".join(role.name.lower() for role in Role)
        raise InvalidRequest(f"unknown role {text!r}: the roles are {roles}", role=text)
    return Role[text.upper()]
