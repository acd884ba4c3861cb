"""SELECT, run by DuckDB over Arrow tables, in a session that can reach nothing else.

One in-memory DuckDB serves all queries. A query gets a cursor of its own: its views are visible to no other
query, and closing it frees the data, so queries of several threads never meet. `query_check` explains the
three walls; the third is `_LOCKED` below.

A query that runs too long is interrupted by the watchdog, which DuckDB notices between two chunks of rows.
(DuckDB's own `max_execution_time` does not stop a running pipeline.) Memory for sorts, joins and aggregates
is limited and never spills to disk; the rows of the result itself are Arrow's and not counted.

Python tells its main thread of Ctrl-C between two steps, and a query would be one step. So what the main thread asks is run
by another, and the main thread waits in a way that Ctrl-C ends.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeAlias

import duckdb
import msgspec
import pyarrow as pa
from sqlglot import exp

from tablecast.errors import DatabaseClosed, TablecastError, Timeout, TooLarge
from tablecast.sql.query_bind import SEQ, BoundSelect, bind_select
from tablecast.sql.query_casts import zoned_texts
from tablecast.sql.query_check import TableKey, check_select, check_serialized
from tablecast.sql.query_errors import translated
from tablecast.sql.query_types import column_kinds, plain, scannable

__all__ = ["QueryEngine", "check_select"]

Data: TypeAlias = pa.Table | pa.RecordBatchReader

_BOUND_SELECTS = 256  # how many rewritten statements are kept

_CTRL_C = "Query interrupted"  # what is left of a KeyboardInterrupt that came while DuckDB looked at a text
_REPEAT_S = 0.05  # between two interrupts of a query: one that comes between two of its phases is lost

# In this order: the last but one closes the outside world, the last closes the settings themselves.
_LOCKED = {
    "temp_directory": "''",
    "max_temp_directory_size": "'0B'",
    "TimeZone": "'UTC'",
    "arrow_lossless_conversion": "true",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_extension_repositories": "'forbidden'",
    "allow_persistent_secrets": "false",
    "enable_external_file_cache": "false",
    "enable_logging": "false",
    "max_expression_depth": "250",
    "python_enable_replacements": "false",
    "python_scan_all_frames": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
}


class QueryEngine:
    """Runs SELECTs. Any number of threads may share it."""

    def __init__(self, *, memory_limit_mb: int = 512, threads: int = 2, timeout_s: float = 30.0) -> None:
        self._limits = {"memory_limit": f"'{memory_limit_mb}MB'", "threads": str(threads)}
        self._memory_limit_mb = memory_limit_mb
        self._watchdog = _Watchdog(timeout_s)
        self._for_main = ThreadPoolExecutor(1, thread_name_prefix="tablecast-query")  # which has one query at a time
        self._lock = threading.Lock()
        self._bound: OrderedDict[int, tuple[exp.Expr, dict[TableKey, pa.Schema], BoundSelect]] = OrderedDict()
        self._session: duckdb.DuckDBPyConnection | None = self._open()

    def run(self, select: exp.Expr, tables: Mapping[TableKey, Data], params: Sequence[Any] = ()) -> pa.Table:
        """The rows of `select`, in the plain types of `query_types`.

        `tables` has the data of each table under the name the query uses, (namespace or None, name). The
        tree is kept to recognise it the next time: it must not change afterwards.
        """
        bound = self._bind(select, tables, zoned_texts(params))
        cursor = self._cursor()
        try:
            for source in bound.sources:
                data = scannable(tables[source.key], with_seq=source.with_seq, uses=source.uses)
                cursor.register(source.view, data)
            with self._watchdog.watch(cursor) as watch, self._our_errors(watch):
                rows = self._fetched(cursor, bound.sql, list(params) or None)
        finally:
            cursor.close()
        return plain(rows)

    def _fetched(self, cursor: duckdb.DuckDBPyConnection, sql: str, params: list[Any] | None) -> pa.Table:
        def fetch() -> pa.Table:
            return cursor.sql(sql, params=params).to_arrow_table()

        if threading.current_thread() is not threading.main_thread():
            return fetch()
        try:
            fetching = self._for_main.submit(fetch)
        except RuntimeError:  # the program ends, or the database is being closed: nobody takes anything on any more
            return fetch()
        try:
            return fetching.result()
        finally:
            while not fetching.done():  # Ctrl-C, or whatever a signal's handler raises
                cursor.interrupt()
                wait([fetching], _REPEAT_S)

    def interrupt(self) -> None:
        """Stops the queries that run now; each raises an error."""
        self._watchdog.interrupt()

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()
        self._for_main.shutdown(wait=False)
        self._watchdog.stop()

    # --- sessions --------------------------------------------------------------------------------------

    def _open(self) -> duckdb.DuckDBPyConnection:
        session = duckdb.connect(":memory:")
        for name, value in (self._limits | _LOCKED).items():
            session.execute(f"SET GLOBAL {name} = {value}")  # a plain SET would not reach the cursors
        return session

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._session is None:
                raise DatabaseClosed("the query engine is closed")
            return self._session.cursor()

    # --- statements ------------------------------------------------------------------------------------

    def _bind(self, select: exp.Expr, tables: Mapping[TableKey, Data], zoned: Mapping[int, str]) -> BoundSelect:
        schemas = {key: data.schema for key, data in tables.items()}
        with self._lock:
            kept = self._bound.get(id(select))
            if kept is not None and kept[0] is select and kept[1] == schemas and not zoned:
                self._bound.move_to_end(id(select))
                return kept[2]
        has_seq = {key: SEQ in schema.names for key, schema in schemas.items()}
        bound = bind_select(select, has_seq, column_kinds(schemas.values()), zoned)
        self._check_text(bound)
        if zoned:  # rare, and bound for these values only
            return bound
        with self._lock:
            self._bound[id(select)] = (select, schemas, bound)
            if len(self._bound) > _BOUND_SELECTS:
                self._bound.popitem(last=False)
        return bound

    def _check_text(self, bound: BoundSelect) -> None:
        cursor = self._cursor()
        try:
            with self._our_errors(None):
                row = cursor.execute("SELECT json_serialize_sql($1::VARCHAR)", [bound.sql]).fetchone()
        finally:
            cursor.close()
        assert row is not None, "a SELECT of one value has one row"
        check_serialized(msgspec.json.decode(row[0]), {source.view for source in bound.sources})

    @contextmanager
    def _our_errors(self, watch: _Watch | None) -> Iterator[None]:
        try:
            yield
        except duckdb.InterruptException:
            raise self._interrupted(watch) from None
        except duckdb.OutOfMemoryException:
            raise TooLarge(
                f"the query needs more than {self._memory_limit_mb} MB of memory: filter or aggregate more",
                limit_mb=self._memory_limit_mb,
            ) from None
        except duckdb.FatalException as error:
            self._replace_session()
            raise translated(error) from error
        except (duckdb.Error, UnicodeEncodeError, OverflowError) as error:
            raise translated(error) from None
        except RuntimeError as error:
            if str(error) != _CTRL_C:
                raise
            raise KeyboardInterrupt from None

    def _interrupted(self, watch: _Watch | None) -> TablecastError:
        if self._session is None:
            return DatabaseClosed("the query was stopped: the query engine is closing")
        if watch is None or not watch.expired:
            return Timeout("the query was stopped before its end")
        limit = self._watchdog.timeout_s
        return Timeout(f"the query ran longer than the limit of {limit:g} s", limit_s=limit)

    def _replace_session(self) -> None:
        """After a fatal error DuckDB refuses all further work; there is no state in it to lose."""
        with self._lock:
            if self._session is not None:
                self._session = self._open()


# --- the watchdog --------------------------------------------------------------------------------------


class _Watch:
    __slots__ = ("cursor", "deadline", "expired")

    def __init__(self, cursor: duckdb.DuckDBPyConnection, deadline: float) -> None:
        self.cursor = cursor
        self.deadline = deadline
        self.expired = False


class _Watchdog:
    """Interrupts what runs past its deadline.

    All queries have the same time, so the oldest one is the first to expire: the thread sleeps until then
    and need not be woken for younger ones. An interrupt is repeated until the query is gone.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._running: dict[int, _Watch] = {}
        self._wake = threading.Condition()
        self._idle = True
        self._stopped = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[_Watch]:
        watch = _Watch(cursor, time.monotonic() + self.timeout_s)
        with self._wake:
            self._running[id(watch)] = watch
            if self._idle:
                self._start()
        try:
            yield watch
        finally:
            with self._wake:
                del self._running[id(watch)]

    def interrupt(self) -> None:
        with self._wake:
            for watch in self._running.values():
                watch.cursor.interrupt()

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        self._idle = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tablecast-query-watchdog", daemon=True)
            self._thread.start()
        self._wake.notify()

    def _run(self) -> None:
        with self._wake:
            while not self._stopped:
                self._wake.wait(self._expire(time.monotonic()))

    def _expire(self, now: float) -> float | None:
        """Interrupts what is due; how long to sleep then, None for until woken."""
        if not self._running:
            self._idle = True
            return None
        for watch in self._running.values():
            if watch.deadline > now:
                return watch.deadline - now
            watch.expired = True
            watch.cursor.interrupt()
        return _REPEAT_S
