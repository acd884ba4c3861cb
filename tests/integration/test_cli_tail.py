"""`tablecast topics`, `groups` and `tail` over a local database."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import SETUP, invoke, plain, run, shop

import tablecast
from tablecast.cli.options import MessageFormat
from tablecast.cli.outage import Outage
from tablecast.cli.tail import Tail, polled
from tablecast.cli.tail_options import parse_filters
from tablecast.cli.topics import duration, lag_bar
from tablecast.model.message import Consumed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return shop(tmp_path)


def test_topics(path: Path) -> None:
    lines = run("topics", path).stdout.splitlines()
    assert lines[0].split() == [
        "topic",
        "alias",
        "partitions",
        "sources",
        "messages",
        "size",
        "kept",
        "for",
        "kept",
        "up",
        "to",
    ]
    assert lines[1].split()[:5] == ["app.order_events", "orders", "2", "1", "5"]


def test_groups_show_their_lag(path: Path) -> None:
    with tablecast.open(path) as database:
        for message in database.consume("orders", group="billing", limit=5).messages[:1]:
            database.ack("orders", "billing", message.offset, partition=message.partition_id)
    shown = invoke("groups", path).stdout.splitlines()[1:]
    assert sum(int(line.split()[6]) for line in shown) == 4
    assert all(line.split()[:2] == ["app.order_events", "billing"] for line in shown)
    assert any("━" in line for line in shown)


def test_the_lag_bar_is_full_when_nothing_was_read() -> None:
    assert lag_bar(10, 10).percentage_completed == 100
    assert lag_bar(0, 10).percentage_completed == 0
    assert lag_bar(12, 10).percentage_completed == 100  # retention took messages that were not read
    assert lag_bar(0, 0).percentage_completed == 0
    assert (lag_bar(5, 10).complete_style, lag_bar(4, 10).complete_style) == ("red", "yellow")


def test_durations() -> None:
    shown = [duration(seconds) for seconds in (0, 0.25, 59, 90, 3_600, 90_000, 604_800)]
    assert shown == ["0 s", "0.2 s", "59 s", "1.5 min", "1 h", "1 d", "7 d"]


def tail(path: Path, *args: object) -> list[dict[str, Any]]:
    done = invoke("tail", path, "orders", "--no-follow", "--format", "ndjson", *args)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_tail_shows_all_partitions_in_the_order_of_commits(path: Path) -> None:
    done = run("tail", path, "orders", "--no-follow")
    shown = [line.split(" ", 4)[2:] for line in done.stdout.splitlines()]
    assert [words[0] for words in shown] == ["insert", "insert", "insert", "update", "delete"]
    assert done.stderr == ""
    found = tail(path)
    assert [message["op"] for message in found] == [words[0] for words in shown]
    assert len({message["partition_id"] for message in found}) == 2
    assert found[3]["payload"]["amount"] == "13.00"
    assert [int(message["seq"]) for message in found] == sorted(int(message["seq"]) for message in found)


def test_tail_begins_with_the_last_messages(path: Path) -> None:
    with tablecast.open(path) as database:
        database.execute("CREATE TOPIC app.one; ALTER TOPIC app.one ADD SOURCE app.orders ON INSERT")
        database.insert("app.orders", [{"id": i, "customer": "c"} for i in range(100, 130)])
    done = invoke("tail", path, "app.one", "--no-follow", "--format", "ndjson")
    assert [json.loads(line)["key"] for line in done.stdout.splitlines()] == [[str(i)] for i in range(120, 130)]


def test_tail_from_limit_and_filter(path: Path) -> None:
    assert len(tail(path, "--from", "earliest")) == 5
    assert tail(path, "--from", "latest") == []
    assert len(tail(path, "--from", "1")) == 5 - len({message["partition_id"] for message in tail(path)})
    assert [m["op"] for m in tail(path, "--limit", 2)] == ["insert", "insert"]
    assert [m["op"] for m in tail(path, "--filter", "op=update,delete")] == ["update", "delete"]
    assert [m["op"] for m in tail(path, "--filter", "op=update,delete", "--limit", 1)] == ["update"]
    assert tail(path, "--filter", "table=app.carts") == []
    assert [m["op"] for m in tail(path, "--filter", "payload.amount=13.00,0.01")] == ["insert", "update", "delete"]
    assert [m["op"] for m in tail(path, "--filter", "payload.note.gift.0=true")] == ["insert", "update"]
    assert [m["op"] for m in tail(path, "--filter", "payload.amount=null", "--filter", "op=insert")] == ["insert"]
    assert tail(path, "--filter", "payload.nothing.there=1") == []


def test_tail_from_a_time(path: Path) -> None:
    last = tail(path)[-1]["ts"]
    assert [m["op"] for m in tail(path, "--from", last)][-1] == "delete"
    assert tail(path, "--from", "2999-01-01") == []
    assert len(tail(path, "--from", "2000-01-01T00:00:00+01:00")) == 5


def test_tail_says_what_is_no_longer_kept(path: Path) -> None:
    with tablecast.open(path) as database:
        database.execute("CLEAR TOPIC app.order_events")
        database.execute("INSERT INTO app.orders (id, customer) VALUES (70, 'kept'), (71, 'kept')")
        kept = database.query(
            "SELECT partition_id, start_offset, end_offset FROM system.topic_partitions WHERE start_offset > 0"
        ).rows
    done = invoke("tail", path, "orders", "--no-follow", "--from", "0", "--format", "ndjson")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 2)
    assert [line for line in done.stderr.splitlines() if "is no longer kept" in line] == [
        f"offset 0 is no longer kept: partition {partition} of app.order_events holds "
        + (f"{start} to {end - 1}" if start < end else f"nothing, its next offset is {end}")
        for partition, start, end in kept
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--filter", "op=upsert"], "there is no op 'upsert': insert, update, delete"),
        (["--filter", "colour=red"], "'colour=red' is not op|table|user|payload.FIELD=value,value"),
        (["--filter", "payload.=red"], "'payload.=red' is not op|table|user|payload.FIELD=value,value"),
        (["--from", "yesterday"], "'yesterday' is not earliest, latest, an offset, or a time such as 2026-01-31T12"),
        (["--limit", "0"], "Invalid value for '--limit'"),
    ],
)
def test_tail_used_wrongly(path: Path, args: list[str], message: str) -> None:
    done = invoke("tail", path, "orders", *args)
    assert done.exit_code == 2
    assert message in plain(done.stderr)


def test_tail_of_a_topic_that_is_not_there(path: Path) -> None:
    done = invoke("tail", path, "app.order_event")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "did you mean app.order_events?" in done.stderr


def test_tail_as_a_group_acknowledges_what_it_showed(path: Path) -> None:
    first = tail(path, "--group", "g", "--limit", 2)
    rest = tail(path, "--group", "g", "--filter", "op=delete")
    assert (len(first), len(rest)) == (2, 1)
    assert {message["delivery"] for message in first + rest} == {1}
    assert tail(path, "--group", "g") == []
    with tablecast.open(path) as database:
        assert database.query("SELECT sum(lag), sum(claimed) FROM system.topic_groups").first() == (0, 0)


@pytest.mark.parametrize("group", [None, "g"])
def test_tail_follows_what_its_process_writes(group: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with await tablecast.open_async(":memory:") as database:
            await database.execute_all(SETUP)
            following = Tail("orders", group, None, 7, True, parse_filters([]), MessageFormat.NDJSON)
            reader = asyncio.create_task(following.show(database))
            for i in (50, 51):
                await database.execute("INSERT INTO app.orders (id, customer) VALUES (?, 'late')", (i,))
            await asyncio.wait_for(reader, 60)

    asyncio.run(main())
    shown = [json.loads(line)["key"] for line in capsys.readouterr().out.splitlines()]
    assert sorted(shown) == sorted([["1"], ["9007199254740993"], ["3"], ["1"], ["3"], ["50"], ["51"]])


@pytest.mark.parametrize(("wait_seconds", "messages", "pauses"), [(20.0, 0, 1), (20.0, 1, 0), (0.0, 0, 0)])
def test_a_server_that_ends_waits_at_once_is_not_asked_again_at_once(
    wait_seconds: float, messages: int, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    async def main() -> None:
        async with await tablecast.open_async(":memory:") as database:
            await database.execute_all(SETUP)
            found = await database.consume("orders", start=tablecast.EARLIEST, limit=1)
            answer = Consumed(found.messages[:messages], 0, False)

            async def ask() -> Consumed:
                return answer

            monkeypatch.setattr(asyncio, "sleep", pause)
            assert await polled(Outage(), ask, wait_seconds) is answer

    asyncio.run(main())
    assert len(paused) == pauses
