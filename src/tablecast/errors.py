"""Every error tablecast raises, in one tree.

Each class has a stable `code` (programs match on it) and an HTTP `status`. The text is written for a person:
it names the culprit and says what would be right. `details` carries the same facts as plain values.

    TablecastError
    ├── InvalidRequest                400   the request itself is wrong
    │   ├── SqlSyntaxError                  not SQL we understand
    │   ├── UnsupportedSql                  valid SQL we refuse, and say so
    │   ├── TypeMismatch                    a value or expression has the wrong type
    │   ├── ExpressionError                 an expression that cannot be evaluated for this row (overflow, bad cast)
    │   ├── MethodNotAllowed          405   the path exists, and takes another HTTP method
    │   ├── InvalidSchema                   a table definition that makes no sense
    │   ├── InvalidTopic                    a topic or source definition that makes no sense
    │   ├── InvalidPipeline                 a pipeline definition that makes no sense
    │   ├── InvalidPart                     a part of a load that cannot be read
    │   ├── NotSealable                     a table that takes no sealed load, and why
    │   ├── InvalidEvent                    bytes that are no replication event, or an event that is no row here
    │   ├── RunsOnSpark                     COPY or AUDIT, sent to where there is no Spark
    │   └── SecretInOption                  a password or token where Spark has written it down already
    ├── UnsupportedMediaType          415   a body of a type that the call does not take
    ├── Unauthenticated               401   no credentials, or wrong ones
    ├── PermissionDenied              403
    ├── NotFound                      404
    │   ├── UnknownNamespace · UnknownTable · UnknownColumn · UnknownTopic · UnknownSource · UnknownGroup · UnknownUser
    │   ├── UnknownPipeline · UnknownLoad
    ├── Conflict                      409
    │   ├── AlreadyExists                   a name that is taken
    │   ├── DuplicateSource                 this table and op already feed the topic
    │   ├── InUse                           something still depends on it
    │   ├── TransactionConflict             another transaction committed first; retry
    │   ├── TransactionState                COMMIT without BEGIN and the like
    │   ├── IdempotencyMismatch             the same key, another request
    │   ├── TopicRecreated                  the topic of that name is another one now
    │   ├── NodeMismatch                    a node id for data that is already another node's
    │   ├── StaleLoad                       a sealed load whose table or sources changed since it began; seal it again
    │   └── SchemaChanged                   a live SELECT * whose table has another column now; subscribe again
    ├── SnapshotGone                  410   a snapshot that was closed, or not read for too long
    ├── OffsetOutOfRange              416   a position that is not (or no longer) in the log
    ├── TooLarge                      413   a row, statement or result over its limit
    ├── ConstraintViolation           422
    │   ├── NotNullViolation · DuplicateKey · CheckViolation · MissingRow
    ├── PayloadMismatch               422   a message that is not a row of the table it names
    ├── TooManyRequests               429   slow down; retry later
    │   ├── RateLimited                     more requests than the settings allow
    │   └── LockedOut                       too many wrong passwords; the account opens again by itself
    ├── Timeout                       504   a statement ran longer than allowed
    ├── Overloaded                    503   a bounded queue stayed full; retry
    │   └── Unreachable                     there is no server at this address, or it is away; retry
    ├── TooManyRejects                422   rows of a COPY that do not fit their table, more than are borne
    ├── JavaMissing                   500   Spark needs a Java that this machine has not
    ├── SparkMissing                  500   Spark itself is not installed
    ├── SparkFailed                   500   Spark could not do its part of a COPY or AUDIT
    └── DatabaseError                 500
        ├── DatabaseClosed                  used after close
        ├── DatabaseLocked                  another process has it open
        ├── NotADatabase                    the path holds something else
        ├── FormatTooNew                    written by a newer tablecast
        ├── ClockOutOfRange                 the clock says a time that ids and timestamps cannot hold
        ├── CorruptData                     bytes that do not decode or do not agree
        ├── DiskFull                  507   no space: only what removes data is taken
        ├── WritesStopped                   a write or fsync failed; nothing further is acknowledged until reopened
        └── BackupError                     a backup that is incomplete or a target that is not free
"""

from __future__ import annotations

from typing import Any, ClassVar


class TablecastError(Exception):
    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(cls: type[TablecastError], message: str, details: dict[str, Any]) -> TablecastError:
    return cls(message, **details)


# --- 400 -----------------------------------------------------------------------------------------------------


class InvalidRequest(TablecastError):
    code = "invalid_request"
    status = 400


class SqlSyntaxError(InvalidRequest):
    code = "sql_syntax"


class UnsupportedSql(InvalidRequest):
    code = "unsupported_sql"


class TypeMismatch(InvalidRequest):
    code = "type_mismatch"


class ExpressionError(InvalidRequest):
    code = "expression_error"


class MethodNotAllowed(InvalidRequest):
    code = "method_not_allowed"
    status = 405


class InvalidSchema(InvalidRequest):
    code = "invalid_schema"


class InvalidTopic(InvalidRequest):
    code = "invalid_topic"


class InvalidPipeline(InvalidRequest):
    code = "invalid_pipeline"


class InvalidPart(InvalidRequest):
    code = "invalid_part"


class NotSealable(InvalidRequest):
    code = "not_sealable"


class InvalidEvent(InvalidRequest):
    code = "invalid_event"


class RunsOnSpark(InvalidRequest):
    code = "runs_on_spark"


class SecretInOption(InvalidRequest):
    code = "secret_in_option"


# --- 401, 403, 404 ------------------------------------------------------------------------------------------------


class UnsupportedMediaType(TablecastError):
    code = "unsupported_media_type"
    status = 415


class Unauthenticated(TablecastError):
    code = "unauthenticated"
    status = 401


class PermissionDenied(TablecastError):
    code = "permission_denied"
    status = 403


class NotFound(TablecastError):
    code = "not_found"
    status = 404


class UnknownNamespace(NotFound):
    code = "unknown_namespace"


class UnknownTable(NotFound):
    code = "unknown_table"


class UnknownColumn(NotFound):
    code = "unknown_column"


class UnknownTopic(NotFound):
    code = "unknown_topic"


class UnknownSource(NotFound):
    code = "unknown_source"


class UnknownGroup(NotFound):
    code = "unknown_group"


class UnknownUser(NotFound):
    code = "unknown_user"


class UnknownPipeline(NotFound):
    code = "unknown_pipeline"


class UnknownLoad(NotFound):
    code = "unknown_load"


# --- 409 -----------------------------------------------------------------------------------------------------


class Conflict(TablecastError):
    code = "conflict"
    status = 409


class AlreadyExists(Conflict):
    code = "already_exists"


class DuplicateSource(Conflict):
    code = "duplicate_source"


class InUse(Conflict):
    code = "in_use"


class TransactionConflict(Conflict):
    code = "transaction_conflict"
    retryable = True


class TransactionState(Conflict):
    code = "transaction_state"


class IdempotencyMismatch(Conflict):
    code = "idempotency_mismatch"


class TopicRecreated(Conflict):
    code = "topic_recreated"


class NodeMismatch(Conflict):
    code = "node_mismatch"


class StaleLoad(Conflict):
    code = "stale_load"


class SchemaChanged(Conflict):
    code = "schema_changed"


class SnapshotGone(TablecastError):
    code = "snapshot_gone"
    status = 410


# --- 413, 416, 422 -------------------------------------------------------------------------------------------


class TooLarge(TablecastError):
    code = "too_large"
    status = 413


class OffsetOutOfRange(TablecastError):
    code = "offset_out_of_range"
    status = 416


class ConstraintViolation(TablecastError):
    code = "constraint_violation"
    status = 422


class NotNullViolation(ConstraintViolation):
    code = "not_null_violation"


class DuplicateKey(ConstraintViolation):
    code = "duplicate_key"


class CheckViolation(ConstraintViolation):
    code = "check_violation"


class MissingRow(ConstraintViolation):
    code = "missing_row"


class PayloadMismatch(TablecastError):
    code = "payload_mismatch"
    status = 422


class TooManyRejects(TablecastError):
    code = "too_many_rejects"
    status = 422


# --- 429, 5xx -----------------------------------------------------------------------------------------------------


class TooManyRequests(TablecastError):
    code = "too_many_requests"
    status = 429
    retryable = True


class RateLimited(TooManyRequests):
    code = "rate_limited"


class LockedOut(TooManyRequests):
    code = "locked_out"
    retryable = False


class Timeout(TablecastError):
    code = "timeout"
    status = 504


class Overloaded(TablecastError):
    code = "overloaded"
    status = 503
    retryable = True


class Unreachable(Overloaded):
    code = "unreachable"


class JavaMissing(TablecastError):
    code = "java_missing"


class SparkMissing(TablecastError):
    code = "spark_missing"


class SparkFailed(TablecastError):
    code = "spark_failed"


class DatabaseError(TablecastError):
    code = "database_error"


class DatabaseClosed(DatabaseError):
    code = "database_closed"


class DatabaseLocked(DatabaseError):
    code = "database_locked"


class NotADatabase(DatabaseError):
    code = "not_a_database"


class FormatTooNew(DatabaseError):
    code = "format_too_new"


class ClockOutOfRange(DatabaseError):
    code = "clock_out_of_range"


class CorruptData(DatabaseError):
    code = "corrupt_data"


class DiskFull(DatabaseError):
    code = "disk_full"
    status = 507


class WritesStopped(DatabaseError):
    code = "writes_stopped"


class BackupError(DatabaseError):
    code = "backup_error"
