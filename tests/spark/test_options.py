"""Options and offsets: what is accepted, what is refused and how, and how ranges become tasks."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.errors import InvalidRequest, OffsetOutOfRange, TopicRecreated
from tablecast.spark.offsets import (
    LogRange,
    PartitionRange,
    Position,
    StreamOffset,
    check_same,
    kept,
    limited,
    position,
    resolve,
    stream_offset,
    tasks,
)
from tablecast.spark.options import read_options, server_options

URL = "http://127.0.0.1:1"
SECRET = "correct horse battery"
GIVEN = {"url": URL, "user": "ann", "password": SECRET, "topic": "app.ev"}


def options(**more: str) -> Any:
    return read_options({**GIVEN, **more}, {})


def refused(environment: dict[str, str] | None = None, **given: str | None) -> str:
    asked = {name: text for name, text in {**GIVEN, **given}.items() if text is not None}
    with pytest.raises(InvalidRequest) as caught:
        read_options(asked, environment or {})
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.details)
    return str(caught.value)


def test_names_are_taken_in_any_case() -> None:
    made = options(STARTINGOFFSETS="Earliest", minpartitions="3", FailOnDataLoss="FALSE", Decode=" true ")
    assert made.starting == Position("startingOffsets", "earliest")
    assert (made.min_partitions, made.fail_on_data_loss, made.decode) == (3, False, True)


def test_defaults() -> None:
    made = options()
    assert (made.starting, made.ending, made.fail_on_data_loss, made.decode) == (None, None, True, False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"colour": "blue"}, "the options are url"),
        ({"url": None}, '"url" is missing'),
        ({"url": "ftp://x"}, "http://"),
        ({"topic": None}, '"topic" or option "table"'),
        ({"table": "app.t"}, '"topic" or option "table"'),
        ({"decode": "yes"}, '"decode" is true or false'),
        ({"minPartitions": "0"}, '"minPartitions" is a whole number'),
        ({"maxOffsetsPerTrigger": "-1"}, '"maxOffsetsPerTrigger" is a whole number'),
        ({"startingOffsets": "newest"}, "earliest, latest, or JSON"),
        ({"startingOffsets": "[1]"}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"0": -1}'}, "-1 for partition 0"),
        ({"startingOffsets": '{"0": true}'}, "True for partition 0"),
        ({"startingOffsets": '{"a": 1}'}, "partition 'a'"),
        ({"startingTimestamp": "yesterday"}, '"startingTimestamp" is an ISO 8601 time'),
        ({"startingTimestamp": "0", "startingOffsets": "earliest"}, "not both"),
        ({"includeSeq": "true"}, '"includeSeq" is for reading a table'),
        ({"topic": None, "table": "app.t", "group": "g"}, '"group" is for reading a topic'),
        ({"token": SECRET}, "not both"),
        ({"passwordFile": "/nonexistent"}, "not both"),
        ({"password": None, "passwordFile": "/nonexistent"}, "cannot be read"),
        ({"user": None, "password": None}, "no credentials"),
        ({"password": None}, "no credentials"),
        ({"url": f"http://ann:{SECRET}@host"}, "credentials"),
    ],
)
def test_what_is_refused_names_the_option(given: dict[str, str | None], said: str) -> None:
    assert said in refused(None, **given)


def test_credentials_from_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    bare = {"url": URL, "topic": "t"}
    assert server_options({**bare, "user": "ann", "passwordFile": str(file)}, {}).password == SECRET
    environment = {"TABLECAST_USER": "bob", "TABLECAST_PASSWORD": SECRET}
    found = server_options(bare, environment)
    assert (found.user, found.password) == ("bob", SECRET)
    assert server_options(bare, {**environment, "TABLECAST_TOKEN": "t"}).token == "t"
    named = server_options({**bare, "user": "ann"}, {**environment, "TABLECAST_TOKEN": "t"})
    assert (named.user, named.password, named.token) == ("ann", SECRET, None)


def test_secrets_are_in_no_repr_and_survive_pickling() -> None:
    made = options()
    assert SECRET not in repr(made)
    assert pickle.loads(pickle.dumps(made)).server.password == SECRET


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123001Z", 1_700_000_000_124),  # the first whole millisecond that is not before it
        ("2023-11-15T00:13:20.123+02:00", 1_700_000_000_123),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert options(startingTimestamp=text).starting.ts_ms == ms


# --- positions --------------------------------------------------------------------------------------------------------

LOG = [PartitionRange(0, 10, 50), PartitionRange(1, 0, 0), PartitionRange(2, 5, 9)]


def test_positions_resolve_per_partition() -> None:
    place = position("startingOffsets", '{"0": 17, "1": "earliest", "2": "latest"}')
    assert resolve(place, "t", LOG) == {0: 17, 1: 0, 2: 9}
    assert resolve(Position("x", "earliest"), "t", LOG) == {0: 10, 1: 0, 2: 5}
    assert resolve(Position("x", "latest"), "t", LOG) == {0: 50, 1: 0, 2: 9}


def test_a_time_that_nothing_reaches_is_the_end() -> None:
    there = [PartitionRange(0, 10, 50, 33), PartitionRange(1, 0, 8, None)]
    assert resolve(Position("x", ts_ms=1), "t", there) == {0: 33, 1: 8}


@pytest.mark.parametrize(
    ("text", "said"),
    [('{"0": 17, "1": 0}', "lacks partition 2"), ('{"0": 17, "1": 0, "2": 5, "3": 1}', "names partition 3")],
)
def test_all_partitions_are_named(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        resolve(position("startingOffsets", text), "t", LOG)


def test_offsets_beyond_the_log() -> None:
    late = position("endingOffsets", '{"0": 51, "1": 0, "2": 5}')
    with pytest.raises(OffsetOutOfRange, match="offset 51 of partition 0 of t does not exist yet; its log ends at 50"):
        resolve(late, "t", LOG)
    early = position("startingOffsets", '{"0": 3, "1": 0, "2": 5}')
    with pytest.raises(OffsetOutOfRange, match="partition 0 of t: offsets 3 to 9 are no longer kept"):
        resolve(early, "t", LOG)
    assert resolve(early, "t", LOG, fail_on_data_loss=False) == {0: 10, 1: 0, 2: 5}


def test_what_retention_took_of_a_range() -> None:
    ranges = [LogRange(0, 0, 20), LogRange(1, 5, 8), LogRange(2, 0, 3)]
    starts = {0: 10, 1: 0, 2: 30}
    with pytest.raises(OffsetOutOfRange, match="offsets 0 to 9"):
        kept("t", ranges, starts, fail_on_data_loss=True)
    left = kept("t", ranges, starts, fail_on_data_loss=False)
    assert left == [LogRange(0, 10, 20), LogRange(1, 5, 8)]


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_offset_survives_json() -> None:
    made = StreamOffset(3, {1: 20, 0: 17})
    assert made.as_json() == {"topic_id": 3, "partitions": {"0": 17, "1": 20}}
    assert stream_offset(made.as_json()) == StreamOffset(3, {0: 17, 1: 20})


@pytest.mark.parametrize("found", [(4, LOG), (3, LOG[:2]), (3, [*LOG, PartitionRange(3, 0, 0)])])
def test_another_topic_of_the_same_name_is_noticed(found: tuple[int, list[PartitionRange]]) -> None:
    with pytest.raises(TopicRecreated, match="dropped and created again"):
        check_same(StreamOffset(3, {0: 10, 1: 0, 2: 5}), "t", *found)


def test_a_log_that_ends_before_what_was_read() -> None:
    with pytest.raises(OffsetOutOfRange, match="older copy"):
        check_same(StreamOffset(3, {0: 51, 1: 0, 2: 5}), "t", 3, LOG)


_backlogs = st.lists(st.integers(0, 50), min_size=1, max_size=6)


@given(_backlogs, st.integers(1, 200))
def test_a_limit_is_used_up_and_shared_fairly(backlog: list[int], most: int) -> None:
    starts = {p: 100 * p for p in range(len(backlog))}
    ends = {p: starts[p] + size for p, size in enumerate(backlog)}
    given = {p: limited(starts, ends, most)[p] - starts[p] for p in starts}
    assert sum(given.values()) == min(most, sum(backlog))
    assert all(0 <= given[p] <= backlog[p] for p in given)
    # Who gets less than another wanted no more, but for the remainder of the division.
    least = min((given[p] for p in given if given[p] < backlog[p]), default=None)
    if least is not None:
        assert max(given.values()) - least <= len(backlog)


def test_a_small_limit_serves_the_fullest() -> None:
    assert limited({0: 0, 1: 0, 2: 0}, {0: 5, 1: 9, 2: 1}, 1) == {0: 0, 1: 1, 2: 0}


# --- tasks ------------------------------------------------------------------------------------------------------------


@given(_backlogs, st.integers(1, 12), st.booleans())
def test_tasks_cover_ranges_once_and_in_order(sizes: list[int], wanted: int, at_least: bool) -> None:
    ranges = [LogRange(p, 7, 7 + size) for p, size in enumerate(sizes)]
    heaps = tasks(ranges, wanted, at_least=at_least)
    said = [(piece.partition, offset) for heap in heaps for piece in heap for offset in range(piece.start, piece.end)]
    assert said == [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]
    assert len(heaps) == (min(wanted, sum(sizes)) if at_least else min(1, sum(sizes)))
    counts = [sum(piece.rows for piece in heap) for heap in heaps]
    assert not counts or (min(counts) > 0 and max(counts) - min(counts) <= 1)


def test_many_messages_are_split_without_being_asked() -> None:
    heaps = tasks([LogRange(0, 0, 1_000_000), LogRange(1, 0, 500_000)], 3)
    assert [sum(piece.rows for piece in heap) for heap in heaps] == [500_000] * 3
