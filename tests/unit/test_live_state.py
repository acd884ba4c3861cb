"""The client's side of live queries, without a socket: single moves, and everything at random against a model server.

The model keeps every state of its table by commit and does what docs/live.asyncapi.yaml says of a server, message by
message; messages wait on both ways until they are delivered, so that everything crosses with everything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tablecast.client import live_queue
from tablecast.client.live_rows import LiveRows
from tablecast.client.live_shape import Shape
from tablecast.client.live_state import LiveState, Query, QueryState
from tablecast.codec.live import (
    Change,
    ClientMessage,
    Error,
    Lagging,
    Live,
    LiveColumn,
    NextBatch,
    Ping,
    Pong,
    RowChange,
    Rows,
    ServerMessage,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from tablecast.errors import CorruptData, Overloaded, SchemaChanged, TooManyRequests, Unauthenticated, UnknownTable
from tablecast.model.change import Op
from tablecast.model.live import LiveChange, LiveStep, reset_step

SCHEMA = [LiveColumn("value", "INT"), LiveColumn("id", "INT", hidden=True)]
KEY = [1]
SQL = "SELECT value FROM t"
HISTORY = "0123456789abcdef"


def insert(key: int, value: int) -> RowChange:
    return RowChange("insert", row=[value, key])


def delete(key: int) -> RowChange:
    return RowChange("delete", key=[key])


def subscribed(query: Query, seq: int, mode: Any = "snapshot", history: str = HISTORY) -> Subscribed:
    return Subscribed(query.id, seq, history, mode, SCHEMA, KEY)


@pytest.fixture
def state() -> LiveState:
    state = LiveState()
    state.connected()
    return state


@pytest.fixture
def query(state: LiveState) -> Query:
    """Live at commit 5 on channel 7, with one row; its reader has read all."""
    query = state.open(SQL, [], None)
    state.received(subscribed(query, 5))
    state.received(Rows(query.id, 5, [[10, 1]], True))
    state.received(Live(query.id, 7, 5, []))
    read(state, query)
    state.messages_to_send()
    return query


def read(state: LiveState, query: Query) -> list[LiveStep]:
    steps = []
    while query.steps:
        steps.append(state.take(query))
    return steps


def changes(state: LiveState, query: Query) -> list[LiveChange]:
    return [change for step in read(state, query) for change in step.changes]


# --- rows, then changes -----------------------------------------------------------------------------------------


def test_rows_then_changes(state: LiveState) -> None:
    query = state.open(SQL, [1, "x"], "app")
    assert state.messages_to_send() == [Subscribe(query.id, SQL, [1, "x"], namespace="app", resume=None)]
    assert state.messages_to_send() == [], "each message is given out once"
    state.received(subscribed(query, 5))
    state.received(Rows(query.id, 5, [[10, 1], [20, 2]], True))
    state.received(Live(query.id, 7, 6, [insert(3, 30)]))
    state.received(Change(7, 8, [RowChange("update", row=[11, 1]), delete(2)]))
    assert read(state, query) == [
        LiveStep(
            [LiveChange(Op.INSERT, (1,), (10,), 5, initial=True), LiveChange(Op.INSERT, (2,), (20,), 5, initial=True)],
            5,
            True,
        ),
        LiveStep([LiveChange(Op.INSERT, (3,), (30,), 6)], 6, True),
        LiveStep([LiveChange(Op.UPDATE, (1,), (11,), 8), LiveChange(Op.DELETE, (2,), None, 8)], 8, True),
    ]
    assert query.shape.columns == ("value",)


def test_rows_are_whole_with_their_last_batch(state: LiveState) -> None:
    query = state.open(SQL, [], None)
    state.received(subscribed(query, 5))
    state.received(Rows(query.id, 5, [[10, 1]], False))
    state.received(Rows(query.id, 5, [], True))
    assert [step.whole for step in read(state, query)] == [False, True]


def test_further_rows_are_asked_for_as_there_is_room(state: LiveState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_queue, "MAX_QUEUED_CHANGES", 3)
    query = state.open(SQL, [], None)
    state.messages_to_send()
    state.received(subscribed(query, 5))
    state.received(Rows(query.id, 5, [[1, 1], [2, 2]], False))
    assert state.messages_to_send() == [NextBatch(query.id)]
    state.received(Rows(query.id, 5, [[3, 3], [4, 4]], False))
    assert state.messages_to_send() == [], "four are queued: the reader has to read first"
    state.take(query)
    assert state.messages_to_send() == [NextBatch(query.id)]


def test_a_change_is_for_those_of_its_channel_that_have_seen_less(state: LiveState, query: Query) -> None:
    other = state.open(SQL, [], None)
    state.received(subscribed(other, 9))
    state.received(Rows(other.id, 9, [], True))
    state.received(Live(other.id, 7, 9, []))
    read(state, other)
    assert state.received(Change(7, 8, [insert(2, 20)])) == [query]
    assert set(state.received(Change(7, 10, [insert(3, 30)]))) == {query, other}
    assert [c.key for c in changes(state, query)] == [(2,), (3,)]
    assert [c.key for c in changes(state, other)] == [(3,)]
    assert state.received(Change(99, 11, [insert(4, 40)])) == []


def test_values_of_a_json_column_are_decoded_as_in_a_select() -> None:
    shape = Shape([LiveColumn("id", "INT"), LiveColumn("doc", "JSON")], [0])
    assert shape.change(Op.UPDATE, [1, '{"a": [1]}'], 5).row == (1, {"a": [1]})
    assert shape.initial([[2, None]], 5)[0].row == (2, None)


def test_a_key_of_several_columns_in_the_order_of_the_primary_key() -> None:
    shape = Shape([LiveColumn("b", "INT"), LiveColumn("v", "INT"), LiveColumn("a", "INT", hidden=True)], [2, 0])
    change = shape.change(Op.INSERT, [2, 9, 1], 5)
    assert (change.key, change.row) == ((1, 2), (2, 9))
    assert shape.change(Op.DELETE, [1, 2], 5).key == (1, 2)


# --- resuming ---------------------------------------------------------------------------------------------------


def test_a_lost_connection_is_resumed_from_the_last_commit_that_was_told(state: LiveState, query: Query) -> None:
    state.received(Change(7, 8, [insert(2, 20)]))
    state.disconnected()
    assert state.messages_to_send() == []
    state.connected()
    assert state.messages_to_send() == [Subscribe(query.id, SQL, [], namespace=None, resume=8, history=HISTORY)]
    state.received(subscribed(query, 8, "resumed"))
    state.received(Live(query.id, 3, 12, [delete(1)]))
    assert [(c.op, c.key, c.reset) for c in changes(state, query)] == [
        (Op.INSERT, (2,), False),
        (Op.DELETE, (1,), False),
    ]
    assert state.received(Change(7, 13, [insert(5, 50)])) == [], "the old channel means nothing here"
    assert state.received(Change(3, 13, [insert(5, 50)])) == [query]


def test_rows_that_had_not_all_come_are_forgotten_and_come_again(state: LiveState) -> None:
    query = state.open(SQL, [], None)
    state.received(subscribed(query, 5))
    state.received(Rows(query.id, 5, [[10, 1]], False))
    state.disconnected()
    state.connected()
    assert state.messages_to_send()[-1] == Subscribe(query.id, SQL, [], namespace=None, resume=None)
    state.received(subscribed(query, 9))
    state.received(Rows(query.id, 9, [[20, 2]], True))
    told = changes(state, query)
    assert [(c.reset, c.key, c.seq) for c in told] == [(False, (1,), 5), (True, (), 9), (False, (2,), 9)]


def test_rows_that_had_all_come_are_resumed_even_before_live(state: LiveState) -> None:
    query = state.open(SQL, [], None)
    state.received(subscribed(query, 5))
    state.received(Rows(query.id, 5, [[10, 1]], True))
    state.disconnected()
    state.connected()
    assert state.messages_to_send()[-1] == Subscribe(query.id, SQL, [], namespace=None, resume=5, history=HISTORY)


def test_a_server_that_cannot_resume_sends_all_rows_after_a_reset(state: LiveState, query: Query) -> None:
    state.disconnected()
    state.connected()
    state.messages_to_send()
    state.received(subscribed(query, 4, "refetch", "another"))  # lower than what was seen: a backup was restored
    state.received(Rows(query.id, 4, [[10, 1]], True))
    state.received(Live(query.id, 2, 4, []))
    assert [(c.reset, c.initial, c.seq) for c in changes(state, query)] == [(True, False, 4), (False, True, 4)]
    assert state.received(Change(2, 5, [insert(2, 20)])) == [query], "it counts from there"
    state.disconnected()
    state.connected()
    assert state.messages_to_send() == [Subscribe(query.id, SQL, [], namespace=None, resume=5, history="another")]


def test_lagging_is_answered_with_a_subscription_of_the_same_number(state: LiveState, query: Query) -> None:
    state.received(Change(7, 8, [insert(2, 20)]))
    state.received(Lagging(query.id, 8))
    assert state.messages_to_send() == [Subscribe(query.id, SQL, [], namespace=None, resume=8, history=HISTORY)]
    assert state.received(Change(7, 9, [insert(3, 30)])) == [], "not for it: it comes with what it resumes to"


def test_a_reader_that_is_too_slow_leaves_and_resumes_when_it_has_read_all(
    state: LiveState, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_queue, "MAX_QUEUED_CHANGES", 3)
    number = query.id
    state.received(Change(7, 6, [insert(n, n) for n in range(10)]))
    assert query.state is QueryState.LIVE, "a commit larger than the queue is taken if nothing else waits"
    state.received(Change(7, 7, [insert(50, 50)]))
    assert query.state is QueryState.BEHIND
    assert state.messages_to_send() == [Unsubscribe(number)]
    assert state.received(Change(7, 8, [insert(51, 51)])) == []
    assert state.received(Unsubscribed(number)) == []
    assert len(changes(state, query)) == 10
    assert state.messages_to_send() == [Subscribe(query.id, SQL, [], namespace=None, resume=6, history=HISTORY)]
    assert query.id != number, "what is still on its way to the old one cannot be mistaken"


def test_a_slow_reader_resumes_also_if_the_connection_was_lost_meanwhile(
    state: LiveState, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_queue, "MAX_QUEUED_CHANGES", 1)
    state.received(Change(7, 6, [insert(1, 1)]))
    state.received(Change(7, 7, [insert(2, 2)]))
    state.disconnected()
    state.connected()
    assert state.messages_to_send() == [], "it has not read yet"
    read(state, query)
    assert state.messages_to_send() == [Subscribe(query.id, SQL, [], namespace=None, resume=6, history=HISTORY)]


def test_a_reader_with_a_full_queue_does_not_resume_before_it_has_read(
    state: LiveState, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_queue, "MAX_QUEUED_CHANGES", 1)
    state.received(Change(7, 6, [insert(1, 1)]))
    state.received(Lagging(query.id, 6))
    assert state.messages_to_send() == []
    read(state, query)
    assert state.messages_to_send() == [Subscribe(query.id, SQL, [], namespace=None, resume=6, history=HISTORY)]


# --- the end ----------------------------------------------------------------------------------------------------


def test_a_closed_query_is_unsubscribed_and_what_is_under_way_passed_over(state: LiveState, query: Query) -> None:
    state.received(Change(7, 6, [insert(1, 1)]))
    state.close(query)
    state.close(query)
    assert state.messages_to_send() == [Unsubscribe(query.id)]
    assert not query.steps
    assert state.received(Change(7, 7, [insert(2, 2)])) == []
    assert state.received(Lagging(query.id, 7)) == []
    assert state.queries == []


def test_an_error_with_an_id_ends_that_query_after_what_it_was_told(state: LiveState, query: Query) -> None:
    other = state.open(SQL, [], None)
    state.received(Change(7, 6, [insert(1, 1)]))
    ended = state.received(Error(id=query.id, code="unknown_table", message="t was dropped", details={"table": "t"}))
    assert ended == [query]
    assert len(changes(state, query)) == 1
    assert isinstance(query.error, UnknownTable)
    assert query.error.details == {"table": "t"}
    assert state.queries == [other]


def test_errors_of_the_connection_are_raised(state: LiveState, query: Query) -> None:
    with pytest.raises(Unauthenticated):
        state.received(Error(code="unauthenticated", message="the token ended"))
    assert query.error is None


def test_what_passes_is_asked_for_again_after_a_while(state: LiveState) -> None:
    query = state.open(SQL, [], None)
    state.messages_to_send()
    state.received(Error(id=query.id, code="rate_limited", message="later"))
    assert query.state is QueryState.REFUSED
    state.disconnected()
    state.connected()
    assert state.messages_to_send() == [], "whoever refused it is given time, on another connection too"
    state.ask_again(query)
    assert state.messages_to_send() == [Subscribe(query.id, SQL, [], namespace=None, resume=None)]
    assert query.error is None
    state.ask_again(query)
    assert state.messages_to_send() == []


def test_a_connection_that_has_all_the_queries_it_may_is_no_matter_of_time(state: LiveState) -> None:
    query = state.open(SQL, [], None)
    state.received(Error(id=query.id, code="too_many_requests", message="this connection has 1000 subscriptions"))
    assert query.state is QueryState.ENDED
    assert isinstance(query.error, TooManyRequests)


def test_a_table_with_other_columns_than_before_ends_the_query(state: LiveState, query: Query) -> None:
    state.disconnected()
    state.connected()
    state.messages_to_send()
    assert state.received(Subscribed(query.id, 5, HISTORY, "resumed", [*SCHEMA, LiveColumn("more", "INT")], KEY)) == [
        query
    ]
    assert isinstance(query.error, SchemaChanged)
    assert state.messages_to_send() == [Unsubscribe(query.id)]
    assert state.queries == []


def test_fail_ends_all(state: LiveState, query: Query) -> None:
    other = state.open(SQL, [], None)
    state.fail(Overloaded("away"))
    assert (str(query.error), str(other.error), state.queries) == ("away", "away", [])


@pytest.mark.parametrize(
    "message",
    [
        lambda query: subscribed(query, 9),
        lambda query: Rows(query.id, 9, [], True),
        lambda query: Live(query.id, 7, 9, []),
        lambda query: Change(7, 9, [RowChange("delete", row=[1, 1])]),
        lambda query: Change(7, 9, [RowChange("insert", key=[1])]),
    ],
)
def test_a_server_that_says_what_makes_no_sense_is_not_believed(state: LiveState, query: Query, message: Any) -> None:
    with pytest.raises(CorruptData):
        state.received(message(query))


def test_a_server_may_not_resume_what_was_not_asked_to_be(state: LiveState) -> None:
    query = state.open(SQL, [], None)
    with pytest.raises(CorruptData):
        state.received(subscribed(query, 9, "resumed"))


def test_an_idle_query_resumes_from_where_the_server_was(state: LiveState, query: Query) -> None:
    state.ask_progress()
    assert state.messages_to_send() == [Ping()]
    assert state.received(Pong(90)) == [], "there is nothing to read"
    state.disconnected()
    state.ask_progress()
    state.connected()
    assert state.messages_to_send() == [Subscribe(query.id, SQL, [], namespace=None, resume=90, history=HISTORY)]


def test_progress_is_that_of_live_queries_and_only_forwards(state: LiveState, query: Query) -> None:
    joining = state.open(SQL, [], None)
    state.received(subscribed(joining, 6))
    state.received(Rows(joining.id, 6, [[10, 1]], True))
    state.received(Change(7, 8, [insert(2, 20)]))
    state.received(Pong(7))
    assert (query.steps.resume, joining.steps.resume) == (8, 6)
    state.received(Pong(9))
    assert (query.steps.resume, joining.steps.resume) == (9, 6), "it is not told yet what came after 6"
    assert state.received(Change(7, 9, [insert(3, 30)])) == [], "another query's, sent again"
    state.received(Live(joining.id, 7, 7, []))
    assert state.received(Change(7, 8, [insert(2, 20)])) == [joining]


def test_nobody_asks_for_progress_when_nothing_is_live(state: LiveState) -> None:
    state.open(SQL, [], None)
    state.messages_to_send()
    state.ask_progress()
    assert state.messages_to_send() == []


def test_what_needs_no_answer(state: LiveState, query: Query) -> None:
    assert state.received(Pong(1)) == []
    assert state.received(Error(id="somebody's", code="unknown_table", message="?")) == []


# --- rows that are kept -----------------------------------------------------------------------------------------


def kept(*steps: LiveStep) -> LiveRows:
    rows = LiveRows()
    for step in steps:
        rows.fold(step)
    return rows


def row(key: int, value: int, seq: int = 1) -> LiveChange:
    return LiveChange(Op.INSERT, (key,), (value,), seq)


def test_rows_that_were_read_do_not_change() -> None:
    rows = kept(LiveStep([row(1, 10)], 1, True))
    before = rows.kept()
    rows.fold(LiveStep([row(1, 11), row(2, 20)], 2, True))
    assert (dict(before.rows), before.seq) == ({(1,): (10,)}, 1)
    assert (dict(rows.kept().rows), rows.seq) == ({(1,): (11,), (2,): (20,)}, 2)


def test_old_rows_stay_until_the_new_ones_are_all_there() -> None:
    rows = kept(LiveStep([row(1, 10)], 1, True))
    rows.fold(reset_step(5))
    rows.fold(LiveStep([row(2, 20)], 5, False))
    assert (dict(rows.kept().rows), rows.version) == ({(1,): (10,)}, 1)
    rows.fold(LiveStep([], 5, True))
    assert (dict(rows.kept().rows), rows.version) == ({(2,): (20,)}, 2)


def test_an_empty_step_is_no_change_but_empty_rows_are_rows() -> None:
    rows = kept(LiveStep([], 3, True))
    assert (dict(rows.kept().rows), rows.seq, rows.version) == ({}, 3, 1)
    rows.fold(LiveStep([], 4, True))
    assert (rows.seq, rows.version) == (3, 1)


def test_a_row_that_was_never_told_may_go() -> None:
    rows = kept(LiveStep([], 3, True), LiveStep([LiveChange(Op.DELETE, (9,), None, 4)], 4, True))
    assert dict(rows.kept().rows) == {}


# --- everything at random ---------------------------------------------------------------------------------------

QUERIES = {"all": lambda value: True, "even": lambda value: value % 2 == 0}
KEYS = st.integers(1, 6)
BATCH_ROWS = 2
State = dict[int, int]


@dataclass
class Served:
    """One subscription at the server."""

    sql: str
    seq: int
    rows: deque[list[int]] = field(default_factory=deque)
    is_resumed: bool = False
    is_live: bool = False


class Server:
    """A table of (id, value) and its subscriptions on one connection."""

    def __init__(self) -> None:
        self.history: list[State] = [{}]
        self.history_id = 0
        self.kept_from = 0
        self.subscriptions: dict[Any, Served] = {}
        self.outgoing: deque[ServerMessage] = deque()
        self.incoming: deque[ClientMessage] = deque()
        self.channels = {sql: number for number, sql in enumerate(QUERIES, 40)}

    @property
    def seq(self) -> int:
        return len(self.history) - 1

    def view(self, sql: str, seq: int) -> State:
        return {key: value for key, value in self.history[seq].items() if QUERIES[sql](value)}

    def difference(self, sql: str, since: int) -> list[RowChange]:
        before, after = self.view(sql, since), self.view(sql, self.seq)
        gone = [delete(key) for key in before if key not in after]
        come = [insert(key, value) for key, value in after.items() if key not in before]
        changed = [
            RowChange("update", row=[value, key])
            for key, value in after.items()
            if key in before and before[key] != value
        ]
        return gone + come + changed

    def commit(self, state: State) -> None:
        self.history.append(state)
        for sql, channel in self.channels.items():
            told = self.difference(sql, self.seq - 1)
            live = [served for served in self.subscriptions.values() if served.is_live and served.sql == sql]
            if told and live:
                self.outgoing.append(Change(channel, self.seq, told))
                for served in live:
                    served.seq = self.seq

    def read_one(self) -> None:
        match self.incoming.popleft():
            case Subscribe(id=number, sql=sql, resume=resume, history=history):
                assert number not in self.subscriptions, "an id is unique on its connection"
                self.subscribe(number, sql, resume, history)
            case Ping():
                self.outgoing.append(Pong(self.seq))
            case NextBatch(id=number):
                if number in self.subscriptions:
                    self.send_rows(number)
            case Unsubscribe(id=number):
                self.subscriptions.pop(number, None)
                self.outgoing.append(Unsubscribed(number))

    def restore(self, seq: int) -> None:
        """A backup of that commit: the numbers after it are used again."""
        del self.history[seq + 1 :]
        self.history_id += 1
        self.kept_from = min(self.kept_from, seq)

    def subscribe(self, number: int, sql: str, resume: int | None, history: str | None) -> None:
        ours = f"history {self.history_id}"
        if resume is not None and history == ours and self.kept_from <= resume <= self.seq:
            self.subscriptions[number] = Served(sql, resume, is_resumed=True)
            self.outgoing.append(Subscribed(number, resume, ours, "resumed", SCHEMA, KEY))
            self.go_live(number)
        else:
            rows = deque([value, key] for key, value in self.view(sql, self.seq).items())
            self.subscriptions[number] = Served(sql, self.seq, rows)
            mode: Any = "snapshot" if resume is None else "refetch"
            self.outgoing.append(Subscribed(number, self.seq, ours, mode, SCHEMA, KEY))
            self.send_rows(number)

    def send_rows(self, number: int) -> None:
        served = self.subscriptions[number]
        assert not served.is_live, "next_batch after the last one"
        batch = [served.rows.popleft() for _ in range(min(BATCH_ROWS, len(served.rows)))]
        self.outgoing.append(Rows(number, served.seq, batch, not served.rows))
        if not served.rows:
            self.go_live(number)

    def go_live(self, number: int) -> None:
        served = self.subscriptions[number]
        self.outgoing.append(Live(number, self.channels[served.sql], self.seq, self.difference(served.sql, served.seq)))
        served.seq, served.is_live = self.seq, True

    def lag(self, number: int) -> None:
        served = self.subscriptions.pop(number)
        self.outgoing.append(Lagging(number, served.seq))

    def lose_connection(self) -> None:
        self.subscriptions.clear()
        self.outgoing.clear()
        self.incoming.clear()


@dataclass
class Reader:
    query: Query
    rows: LiveRows = field(default_factory=LiveRows)
    seq: int = -1

    def read(self, step: LiveStep) -> None:
        is_reset = bool(step.changes) and step.changes[0].reset
        assert is_reset or step.seq >= self.seq, "a commit is told once, and in order"
        assert all(change.seq == step.seq for change in step.changes)
        self.seq = step.seq
        self.rows.fold(step)


class LiveAgainstAModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.state, self.server = LiveState(), Server()
        self.readers: list[Reader] = []
        self.is_connected = False

    def flush(self) -> None:
        messages = self.state.messages_to_send()
        assert self.is_connected or not messages
        self.server.incoming.extend(messages)

    def pick(self, number: int) -> Reader:
        return self.readers[number % len(self.readers)]

    # --- the world ---

    @rule(changes=st.dictionaries(KEYS, st.none() | st.integers(0, 5), min_size=1, max_size=4))
    def commit(self, changes: dict[int, int | None]) -> None:
        after = {**self.server.history[-1], **changes}
        self.server.commit({key: value for key, value in after.items() if value is not None})

    @rule()
    def forget(self) -> None:
        self.server.kept_from = self.server.seq

    @precondition(lambda self: not self.is_connected)
    @rule(back=st.integers(0, 5))
    def restore(self, back: int) -> None:
        self.server.restore(max(0, self.server.seq - back))

    @rule()
    def ask_progress(self) -> None:
        self.state.ask_progress()
        self.flush()

    @precondition(lambda self: not self.is_connected)
    @rule()
    def connect(self) -> None:
        self.is_connected = True
        self.state.connected()
        self.flush()

    @precondition(lambda self: self.is_connected)
    @rule()
    def lose_connection(self) -> None:
        self.is_connected = False
        self.server.lose_connection()
        self.state.disconnected()
        self.flush()

    @precondition(lambda self: self.server.incoming)
    @rule(count=st.integers(1, 4))
    def server_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.server.incoming))):
            self.server.read_one()

    @precondition(lambda self: self.server.outgoing)
    @rule(count=st.integers(1, 6))
    def client_receives(self, count: int) -> None:
        for _ in range(min(count, len(self.server.outgoing))):
            told = self.state.received(self.server.outgoing.popleft())
            assert all(query.state is not QueryState.ENDED for query in told)
            self.flush()

    @rule(pick=st.integers(0, 20))
    def server_calls_it_lagging(self, pick: int) -> None:
        live = [number for number, served in self.server.subscriptions.items() if served.is_live]
        if live:
            self.server.lag(live[pick % len(live)])

    # --- readers ---

    @rule(sql=st.sampled_from(sorted(QUERIES)))
    def open(self, sql: str) -> None:
        if len(self.readers) < 5:
            self.readers.append(Reader(self.state.open(sql, [], None)))
            self.flush()

    @precondition(lambda self: self.readers)
    @rule(pick=st.integers(0, 20), count=st.integers(1, 3))
    def read(self, pick: int, count: int) -> None:
        reader = self.pick(pick)
        for _ in range(count):
            if reader.query.steps:
                reader.read(self.state.take(reader.query))
                self.flush()

    @precondition(lambda self: self.readers)
    @rule(pick=st.integers(0, 20))
    def close(self, pick: int) -> None:
        reader = self.pick(pick)
        self.readers.remove(reader)
        self.state.close(reader.query)
        self.flush()

    # --- what must hold ---

    @invariant()
    def memory_is_bounded(self) -> None:
        for reader in self.readers:
            sizes = [len(step.changes) for step in reader.query.steps._steps]
            assert sum(sizes[:-1]) <= live_queue.MAX_QUEUED_CHANGES + BATCH_ROWS + 1, "but for a last one of any size"

    @rule()
    def settle(self) -> None:
        """When nothing is under way any more, every reader has the rows of the table."""
        if not self.is_connected:
            self.connect()
        while self.server.incoming or self.server.outgoing or any(reader.query.steps for reader in self.readers):
            self.server_reads(10**6)
            self.client_receives(10**6)
            for number in range(len(self.readers)):
                self.read(number, 1)
        for reader in self.readers:
            assert reader.query.state is QueryState.LIVE
            view = self.server.view(reader.query.sql, self.server.seq)
            assert dict(reader.rows.kept().rows) == {(key,): (value,) for key, value in view.items()}
        assert len(self.server.subscriptions) == len(self.readers), "nobody is served who has gone"

    def teardown(self) -> None:
        if hasattr(self, "readers"):
            self.settle()


class TestLiveAgainstAModel(LiveAgainstAModel.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=150, stateful_step_count=60)

    def setUp(self) -> None:
        self.usual, live_queue.MAX_QUEUED_CHANGES = live_queue.MAX_QUEUED_CHANGES, 4  # readers fall behind

    def tearDown(self) -> None:
        live_queue.MAX_QUEUED_CHANGES = self.usual
