"""Where a pipeline stands, on disk: one directory per pipeline.

    DIRECTORY/app.revenue/
        pipeline.json     {"format": 1, "fingerprint": …, "generation": 2, "definition": …}: whose progress it is
        lock              held by the runner that runs it
        2/                Spark's own checkpoint: offsets, commits, state; one per generation

The progress of one definition means nothing to another: a query that counts what it did not see counts wrong. So the
fingerprint of the definition is kept with it, and one that differs is refused. `restart` begins a new generation.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tablecast.errors import Conflict, CorruptData
from tablecast.spark.durable import sync

FORMAT = 1
FILE, LOCK = "pipeline.json", "lock"


class PipelineChanged(Conflict):
    """The checkpoint is of another definition."""

    code = "pipeline_changed"


class PipelineTaken(Conflict):
    """Another runner runs it."""

    code = "pipeline_taken"


class Marker(msgspec.Struct, frozen=True):
    format: int
    fingerprint: str
    generation: int
    definition: str


def fingerprint(definition: str) -> str:
    return hashlib.sha256(definition.encode()).hexdigest()[:32]


class Checkpoint:
    """The directory of one pipeline."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raises PipelineTaken while another runner holds it. The kernel lets go of what a killed one held."""
        self._directory.mkdir(parents=True, exist_ok=True)
        file = os.open(self._directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineTaken(
                    f"{self._name} is run by another runner, which holds {self._directory / LOCK}", pipeline=self._name
                ) from None
            yield
        finally:
            os.close(file)

    def prepared(self, definition: str, *, restart: bool = False) -> Path:
        """The directory for Spark. Raises PipelineChanged unless the definition is the one it was made for."""
        marker = self._marker()
        if marker is not None and marker.fingerprint == fingerprint(definition) and not restart:
            return self._directory / str(marker.generation)
        if marker is not None and not restart:
            raise PipelineChanged(
                f"{self._name} is not what it was when {self._directory} was begun ({_difference(marker, definition)}): "
                "its progress does not fit the new definition; --restart-from-start begins anew, from the messages that "
                "are kept",
                pipeline=self._name,
            )
        generation = 1 if marker is None else marker.generation + 1
        self._write(Marker(FORMAT, fingerprint(definition), generation, definition))
        if marker is not None:
            shutil.rmtree(self._directory / str(marker.generation), ignore_errors=True)
        return self._directory / str(generation)

    def _marker(self) -> Marker | None:
        path = self._directory / FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=Marker)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise CorruptData(f"{path} cannot be read ({error}): --restart-from-start begins anew") from error

    def _write(self, marker: Marker) -> None:
        """Whole or not at all."""
        draft = self._directory / f"{FILE}.draft"
        draft.write_bytes(msgspec.json.encode(marker))
        sync(draft)
        draft.replace(self._directory / FILE)
        sync(self._directory)


def _difference(marker: Marker, definition: str) -> str:
    """Which members of the two definitions differ."""
    with suppress(msgspec.MsgspecError):
        before, now = msgspec.json.decode(marker.definition), msgspec.json.decode(definition)
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        return "changed: " + ", ".join(changed)
    return "it cannot be compared"
