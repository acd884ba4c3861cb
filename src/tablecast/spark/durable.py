"""That what Spark plans survives a power cut, before a batch of it is committed.

A batch is known by its number. Spark writes down which messages belong to it, and does not fsync that. Were the batch
committed and the note of it then lost, Spark would plan the same number anew with other messages in it, and tablecast
would answer that this batch is done: they would be in no table.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit


def local_place(location: str) -> Path | None:
    """The directory of a checkpointLocation. None: it is not of this machine's file system, and its own to keep.

    Spark takes the text as it is, without undoing %20 and the like.
    """
    scheme = urlsplit(location).scheme
    if scheme == "file":
        path = location[len("file:") :]
        return Path(path[2:] if path.startswith("///") else path)
    return None if scheme else Path(location)


def make_durable(checkpoint: Path, batch_id: int) -> None:
    """The batch's plan, the query's id, and the directories that hold them. Where there is no such file, it is kept
    elsewhere."""
    offsets = checkpoint / "offsets"
    for path in (offsets / str(batch_id), offsets, checkpoint / "metadata", checkpoint, checkpoint.parent):
        with suppress(FileNotFoundError):
            sync(path)


def sync(path: Path) -> None:
    """A file, or the entries of a directory."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
