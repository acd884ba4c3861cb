"""A checkpoint of Spark's is on disk before a batch of it is committed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tablecast.client.bulk import BulkClient, LoadDone
from tablecast.spark.durable import local_place, make_durable
from tablecast.spark.fitting import Fit
from tablecast.spark.stream_writer import StreamTableWriter
from tablecast.spark.task import Staged
from tablecast.spark.write_options import write_options

GIVEN = {"url": "http://127.0.0.1:1", "token": "t", "table": "app.t"}


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("/data/c", "/data/c"),
        ("data/c", "data/c"),
        ("file:/data/c", "/data/c"),
        ("file://" + "/data/a%20c", "/data/a%20c"),
        ("hdfs://name/data/c", None),
        ("s3a://bucket/c", None),
    ],
)
def test_which_checkpoints_are_of_this_machine(location: str, place: str | None) -> None:
    assert local_place(location) == (None if place is None else Path(place))


class Journal:
    """What is synced and what is committed, in that order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[str] = []
        monkeypatch.setattr(os, "fsync", self._sync)
        monkeypatch.setattr(BulkClient, "commit_load", self._commit)

    def _sync(self, file: int) -> None:
        self.entries.append(str(Path(f"/proc/self/fd/{file}").readlink()))

    def _commit(self, load_id: str, parts: object, **further: object) -> LoadDone:
        self.entries.append(f"commit {load_id}")
        return LoadDone(1, 1)


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Journal:
    return Journal(monkeypatch)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint"
    (made / "offsets").mkdir(parents=True)
    (made / "metadata").write_text("{}")
    (made / "offsets" / "3").write_text("v1")
    return made


def committed(location: str | None, batch_id: int) -> None:
    given = GIVEN if location is None else {**GIVEN, "checkpointLocation": location}
    writer = StreamTableWriter(write_options(given, {}), Fit((0,), ("id",)))
    writer.commit([Staged("load", ((0, "a"),), 1)], batch_id)


def test_a_stream_commits_what_is_durable(journal: Journal, checkpoint: Path) -> None:
    committed(checkpoint.as_uri(), 3)
    synced = [checkpoint / "offsets" / "3", checkpoint / "offsets", checkpoint / "metadata", checkpoint]
    assert journal.entries == [*map(str, synced), str(checkpoint.parent), "commit load"]


@pytest.mark.parametrize("location", [None, "hdfs://name/data/c"])
def test_what_is_kept_elsewhere_is_not_looked_for(journal: Journal, location: str | None) -> None:
    committed(location, 3)
    assert journal.entries == ["commit load"]


def test_what_is_not_there_is_kept_elsewhere(journal: Journal, checkpoint: Path) -> None:
    make_durable(checkpoint, 4)
    assert str(checkpoint / "offsets") in journal.entries
    make_durable(checkpoint / "nothing" / "here", 0)
