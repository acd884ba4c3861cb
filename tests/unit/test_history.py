"""The checker accepts every history that keeps the promises, and its records and figures are exact."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_log import EVERYTHING, ORDERS, ROUTES, ReferenceLog, Step, steps

from tablecast.errors import CorruptData, InvalidRequest
from tablecast.model.change import Op
from tablecast.model.message import Message
from tablecast.model.topic import PayloadMode
from tablecast.testing.history import History, Kind, Recorder, RowKey, TopicRule, check, fold
from tablecast.testing.history.events import Invoke, Ok


@given(st.lists(steps, max_size=25), st.sets(st.sampled_from(sorted(ROUTES))))
@settings(max_examples=300, deadline=None)
def test_a_history_that_keeps_the_promises_passes(done: list[Step], topics: set[str]) -> None:
    report = check(ReferenceLog().run(done), routes={topic: ROUTES[topic] for topic in topics})
    assert report.problems == []
    assert all(topic.coverage == 1 and topic.duplication == 1 for topic in report.topics.values())


# --- single promises ----------------------------------------------------------------------------------------


def message(offset: int, key: Any, row: dict[str, Any], seq: int, op: Op = Op.INSERT, **fields: Any) -> Message:
    """A message of app.orders in full, as a server would have made it."""
    made = {
        "topic_id": 1,
        "partition_id": 0,
        "offset": offset,
        "message_id": 100 + offset,
        "source_table": ORDERS,
        "op": op,
        "ts": 1000 + seq,
        "payload_mode": PayloadMode.FULL,
        "key": msgspec.json.encode([key]),
        "payload": msgspec.json.encode({"_table": ORDERS, **row}),
        "user_id": None,
        "seq": seq,
        "content_hash": 0,
    }
    return Message(**(made | fields))


def recorder() -> Recorder:
    return Recorder(now=itertools.count(1).__next__)


ORDERS_ONLY = {EVERYTHING: TopicRule(lambda write: write.table == ORDERS, folds=(ORDERS,))}


def test_values_are_the_same_in_python_in_a_payload_and_in_a_row() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    row = {
        "id": 2**60,
        "amount": Decimal("9.50"),
        "at": at,
        "raw": b"\x00",
        "on": date(2026, 1, 2),
        "tags": [1],
    }
    payload = {"id": str(2**60), "amount": "9.50", "at": at, "raw": b"\x00", "on": "2026-01-02", "tags": [1]}
    r = recorder()
    r.invoke("w1", ORDERS, "insert", [2**60], row)
    r.ok("w1", seq=1)
    r.saw_table(ORDERS, [{**row, "tags": "[1]"}], ["id"])
    r.saw_topic(EVERYTHING, [message(0, str(2**60), payload, 1)])
    check(r.history(), routes=ORDERS_ONLY).raise_if_bad()


def test_true_is_not_one() -> None:
    r = recorder()
    r.invoke("w1", ORDERS, "insert", [1], {"id": 1, "paid": True})
    r.ok("w1", seq=1)
    r.saw_topic(EVERYTHING, [message(0, 1, {"id": 1, "paid": 1}, 1)])
    report = check(r.history(), routes={EVERYTHING: lambda write: True})
    assert report.kinds() == {Kind.WRONG_CONTENT}


def test_the_rows_of_two_users_are_two_rows() -> None:
    r = recorder()
    for seq, user in enumerate(["ann", "bob"], 1):
        r.invoke(user, ORDERS, "insert", [1], {"id": 1, "amount": seq}, user_id=user)
        r.ok(user, seq=seq)
        r.saw_table(ORDERS, [{"id": 1, "amount": seq}], ["id"], user_id=user)
    messages = [
        message(0, 1, {"id": 1, "amount": 1}, 1, user_id="ann"),
        message(0, 1, {"id": 1, "amount": 2}, 2, user_id="bob", partition_id=1, message_id=9),
    ]
    r.saw_topic(EVERYTHING, messages)
    check(r.history(), routes=ORDERS_ONLY).raise_if_bad()
    r.saw_topic(EVERYTHING, [messages[0], msgspec.structs.replace(messages[1], user_id="ann")])
    assert {Kind.LOST, Kind.PHANTOM, Kind.TORN} <= check(r.history(), routes=ORDERS_ONLY).kinds()


def test_a_commit_number_must_be_above_what_was_acknowledged_before_the_write_was_sent() -> None:
    r = recorder()
    r.invoke("w1", ORDERS, "insert", [1])
    r.ok("w1", seq=5)
    r.invoke("w2", ORDERS, "insert", [2])
    r.ok("w2", seq=4)
    (problem,) = check(r.history(), routes={}).problems
    assert problem.kind is Kind.REORDERED
    assert "'w2'" in problem.culprit


def test_a_request_that_is_sent_again_may_be_answered_again() -> None:
    r = recorder()
    r.invoke("w1", ORDERS, "insert", [1])
    r.fail("w1", error="overloaded")
    r.ok("w1", seq=5)
    r.ok("w1", seq=5)
    assert check(r.history(), routes={}).ok


def test_one_acknowledgement_speaks_for_its_transaction() -> None:
    r = recorder()
    for row_id in (1, 2):
        r.invoke(f"w{row_id}", ORDERS, "insert", [row_id], {"id": row_id}, txn_id="t")
    r.ok("w1", seq=1)  # and the recorder died before it could record w2
    r.saw_topic(EVERYTHING, [message(0, 1, {"id": 1}, 1)])
    assert check(r.history(), routes={EVERYTHING: lambda w: True}).kinds() == {Kind.LOST, Kind.TORN}


def retained() -> Recorder:
    """Ten writes, of which the topic has kept the last five."""
    r = recorder()
    for seq in range(10):
        r.invoke(f"w{seq}", ORDERS, "insert", [seq], {"id": seq})
        r.ok(f"w{seq}", seq=seq)
    return r


def test_what_retention_removed_is_not_lost() -> None:
    r = retained()
    r.saw_topic(EVERYTHING, [message(n, n, {"id": n}, n) for n in range(5, 10)], starts={0: 5})
    report = check(r.history(), routes={EVERYTHING: lambda write: True})
    assert report.ok
    assert report.topics[EVERYTHING].coverage == 1


def test_what_is_missing_above_the_log_start_is_lost() -> None:
    r = retained()
    r.saw_topic(EVERYTHING, [message(n, n, {"id": n}, n) for n in (5, 6, 8, 9)], starts={0: 5})
    report = check(r.history(), routes={EVERYTHING: lambda write: True})
    assert report.kinds() == {Kind.LOST, Kind.SKIPPED}
    assert report.topics[EVERYTHING].gaps == 1


def test_a_row_that_changes_its_partition_key_may_move() -> None:
    r = recorder()
    rows = [{"id": 1, "customer": "ann"}, {"id": 1, "customer": "bob"}]
    for seq, (op, row) in enumerate(zip(("insert", "update"), rows, strict=True)):
        r.invoke(f"w{seq}", ORDERS, op, [1], row)
        r.ok(f"w{seq}", seq=seq)
    r.saw_table(ORDERS, [rows[1]], ["id"])
    first = message(0, 1, rows[0], 0, partition_id=1)
    r.saw_topic(EVERYTHING, [message(0, 1, rows[1], 1, Op.UPDATE, message_id=7), first])
    rule = TopicRule(lambda write: True, (ORDERS,), partition_by=lambda seen: seen.value["customer"])
    check(r.history(), routes={EVERYTHING: rule}).raise_if_bad()
    assert Kind.WRONG_PARTITION in check(r.history(), routes=ORDERS_ONLY).kinds()


def test_a_delivery_that_was_asked_for_before_the_ack_is_no_redelivery() -> None:
    told = message(0, 1, {"id": 1}, 1)
    r = recorder()
    asked = r.now()
    r.delivered("g", "ann", EVERYTHING, [told])
    r.acked("g", EVERYTHING, 0, offsets=[0])
    again = msgspec.structs.replace(told, delivery=2)
    r.delivered("g", "bob", EVERYTHING, [again], asked=asked)
    assert check(r.history(), routes={}).ok
    r.delivered("g", "bob", EVERYTHING, [msgspec.structs.replace(told, delivery=3)])
    assert check(r.history(), routes={}).kinds() == {Kind.REDELIVERED}


def test_a_group_may_begin_above_the_log_start_if_it_says_so() -> None:
    for says_so, kinds in [(True, set()), (False, {Kind.SKIPPED})]:
        r = recorder()
        if says_so:
            r.started("g", EVERYTHING, {0: 7})
        r.delivered("g", "ann", EVERYTHING, [message(7, 1, {"id": 1}, 1)])
        r.acked("g", EVERYTHING, 0, upto=7)
        assert check(r.history(), routes={}).kinds() == kinds


# --- figures ------------------------------------------------------------------------------------------------


def test_figures_are_exact_and_percent_is_rounded_down() -> None:
    r = recorder()
    for n in range(3000):
        r.invoke(f"w{n}", ORDERS, "insert", [n])
        r.ok(f"w{n}", seq=n)
    kept = [message(n, n, {"id": n}, n) for n in range(2999)]
    r.saw_topic(EVERYTHING, [*kept, msgspec.structs.replace(kept[-1], offset=2999)])
    report = check(r.history(), routes={EVERYTHING: lambda write: True})
    figures = report.topics[EVERYTHING]
    assert figures.coverage == Fraction(2999, 3000)
    assert figures.duplication == Fraction(3000, 2999)
    assert "99.96 %" in report.table()
    assert [p.culprit for p in report.problems if p.kind is Kind.LOST] == [
        "acknowledged write 'w2999' (insert app.orders [\"2999\"], seq 2999) is not on the topic"
    ]


def test_raise_if_bad_shows_the_first_culprit_and_the_count() -> None:
    r = recorder()
    for n in range(3):
        r.invoke(f"w{n}", ORDERS, "insert", [n])
        r.ok(f"w{n}", seq=n)
    r.saw_topic(EVERYTHING, [])
    with pytest.raises(AssertionError, match=r"lost: app.everything: acknowledged write 'w0' .*\(and 2 more\)"):
        check(r.history(), routes={EVERYTHING: lambda write: True}).raise_if_bad()


def test_fold_sets_and_removes() -> None:
    told = [
        message(0, 1, {"id": 1, "amount": 1}, 1),
        message(1, 2, {"id": 2, "amount": 1}, 1),
        message(2, 1, {"id": 1, "amount": 2}, 2, Op.UPDATE),
        message(3, 2, {"id": 2, "amount": 1}, 3, Op.DELETE),
    ]
    assert fold(told) == {RowKey(ORDERS, None, '["1"]'): {"id": 1, "amount": 2}}
    with pytest.raises(InvalidRequest, match="payload mode is 'key'"):
        fold([message(0, 1, {"id": 1}, 1, payload_mode=PayloadMode.KEY)])


# --- files --------------------------------------------------------------------------------------------------


def record_some(r: Recorder) -> None:
    r.invoke("w1", ORDERS, "insert", b'["1"]', {"id": 1, "amount": Decimal("1.50")}, txn_id="t", user_id="ann")
    r.ok("w1", seq=3)
    r.invoke("w2", ORDERS, "delete", [1])
    r.fail("w2", error=ValueError("no"))
    r.started("g", EVERYTHING, {0: 0})
    r.delivered("g", "ann", EVERYTHING, [message(0, 1, {"id": 1}, 3)])
    r.acked("g", EVERYTHING, 0, upto=0)
    r.acked("g", EVERYTHING, 0, offsets=[0])
    r.saw_table(ORDERS, [{"id": n} for n in range(2500)], ["id"])
    r.saw_topic(EVERYTHING, [message(0, 1, {"id": 1}, 3)], starts={0: 0})


def test_a_history_is_the_same_from_a_file_and_from_memory(tmp_path: Path) -> None:
    in_memory, path = recorder(), tmp_path / "h.jsonl"
    record_some(in_memory)
    with Recorder(path, now=itertools.count(1).__next__) as in_file:
        record_some(in_file)
    assert History.load(path).events == in_memory.history().events
    in_memory.history().save(tmp_path / "saved.jsonl")
    assert (tmp_path / "saved.jsonl").read_bytes() == path.read_bytes()


def test_a_torn_last_line_is_dropped_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with Recorder(path) as r:
        r.invoke("w1", ORDERS, "insert", [1])
        r.ok("w1", seq=1)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        assert len(History.load(path).events) == 1
    path.write_bytes(whole)
    assert len(History.load(path).events) == 2


def test_a_recorder_that_goes_on_after_a_torn_line_cuts_it_off(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with Recorder(path) as r:
        r.invoke("w1", ORDERS, "insert", [1])
    with path.open("ab") as file:
        file.write(b'{"event":"ok","at":5,"wri')
    with Recorder(path) as r:
        r.invoke("w2", ORDERS, "insert", [2])
    assert [getattr(e, "write_id", None) for e in History.load(path).events] == ["w1", "w2"]


def test_damage_elsewhere_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with Recorder(path) as r:
        r.invoke("w1", ORDERS, "insert", [1])
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    with pytest.raises(CorruptData, match="line 1 is not a history event"):
        History.load(path)


def test_a_writer_that_is_killed_leaves_what_it_recorded(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    script = (
        "import sys\n"
        "from tablecast.testing.failpoints import kill\n"
        "from tablecast.testing.history import Recorder\n"
        "r = Recorder(sys.argv[1])\n"
        "for n in range(100):\n"
        "    r.invoke(f'w{n}', 'app.orders', 'insert', [n])\n"
        "    if n == 70: kill()\n"
        "    r.ok(f'w{n}', seq=n)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    figures = check(History.load(path), routes={}).writes
    assert (figures.acknowledged, figures.unknown) == (70, 1)


def test_files_are_merged_by_time(tmp_path: Path) -> None:
    clock = itertools.count(1)
    paths = [tmp_path / "writer.jsonl", tmp_path / "retry.jsonl"]
    with Recorder(paths[0], now=clock.__next__) as writer, Recorder(paths[1], now=clock.__next__) as retry:
        writer.invoke("w1", ORDERS, "insert", [1])
        retry.ok("w1", seq=1)
        writer.invoke("w2", ORDERS, "insert", [2])
    assert [type(e) for e in History.load(*reversed(paths)).events] == [Invoke, Ok, Invoke]


# --- histories that make no sense ---------------------------------------------------------------------------


def test_a_topic_must_have_been_observed_to_its_end() -> None:
    whole = recorder()
    whole.saw_topic(EVERYTHING, [message(n, n, {"id": n}, n) for n in range(1500)])
    torn = History(whole.history().events[:1])
    with pytest.raises(InvalidRequest, match=r"no complete observation of topic 'app\.everything'"):
        check(torn, routes={EVERYTHING: lambda write: True})


def test_a_folded_table_must_have_been_observed() -> None:
    r = recorder()
    r.saw_topic(EVERYTHING, [])
    with pytest.raises(InvalidRequest, match=r"no complete observation of table 'app\.orders'"):
        check(r.history(), routes=ORDERS_ONLY)


def test_the_last_observation_counts() -> None:
    r = recorder()
    r.saw_topic(EVERYTHING, [message(0, 1, {"id": 1}, 1)])
    r.saw_topic(EVERYTHING, [])
    assert check(r.history(), routes={EVERYTHING: lambda write: True}).ok


def test_a_write_id_names_one_write() -> None:
    r = recorder()
    r.invoke("w1", ORDERS, "insert", [1])
    r.invoke("w1", ORDERS, "insert", [1])
    with pytest.raises(CorruptData, match="'w1' is invoked twice"):
        check(r.history(), routes={})


def test_an_outcome_needs_a_write() -> None:
    r = recorder()
    r.ok("w1", seq=1)
    with pytest.raises(CorruptData, match="'w1' has an outcome but was never invoked"):
        check(r.history(), routes={})


def test_an_unknown_op_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="unknown op 'merge'"):
        recorder().invoke("w1", ORDERS, "merge", [1])


# --- what the documentation shows ---------------------------------------------------------------------------


def test_the_examples_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in examples:
        exec(example, names)


def test_the_documentation_lists_every_kind() -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    assert [kind for kind in Kind if f"\n| {kind} |" not in page] == []
