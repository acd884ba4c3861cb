"""The driver's part of a write: all that the tasks staged becomes one commit, or is given up."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import replace

from tablecast.client.bulk import BulkClient, LoadDone, Server
from tablecast.client.retry import Retry
from tablecast.errors import Overloaded, StaleLoad, TablecastError, Timeout
from tablecast.model.pipeline import DuplicateLetters
from tablecast.spark.task import Staged, partition_of

BRIEFLY = Retry(attempts=3, backoff_seconds=0.2, total_seconds=5.0)  # a job that failed should not wait to say so
_PART = re.compile(r"\bpart (\d+)\b")


def staged_of(messages: Iterable[object]) -> list[Staged]:
    """Spark's messages without those of tasks that failed, which are None."""
    return [message for message in messages if isinstance(message, Staged)]


def commit_parts(
    client: BulkClient, load_id: str, messages: Iterable[object], duplicates: DuplicateLetters | None = None
) -> LoadDone:
    """In the order of the partitions, which is that of the DataFrame. `duplicates`: see BulkClient.commit_load."""
    parts = sorted(part for staged in staged_of(messages) for part in staged.parts)
    try:
        return client.commit_load(load_id, parts, duplicates=duplicates)
    except StaleLoad as error:
        raise StaleLoad(f"nothing was written: {error.message}; run it again", **error.details) from error
    except (Overloaded, Timeout) as error:
        raise _unknown(error) from error
    except TablecastError as error:
        raise _in_partitions(error) from error


def the_load(staged: Iterable[Staged], what: str) -> str | None:
    """The one load that the tasks of a batch staged for. None: there is nothing to commit, because no task had rows, or
    because it is committed already. Raises StaleLoad if there are several."""
    told = list(staged)
    loads = {each.load_id for each in told if each.load_id}
    if any(each.committed for each in told) or not loads:
        return None
    if len(loads) > 1:
        raise StaleLoad(
            f"the load of {what} was begun anew while its tasks were at work, because the table was changed: nothing of "
            "it was written; start the query again"
        )
    return loads.pop()


def abort_loads(server: Server, load_ids: Iterable[str]) -> None:
    """What is not reached now, the server removes by itself when nobody has come back for a day."""
    with BulkClient(replace(server, retry=BRIEFLY)) as client, contextlib.suppress(TablecastError):
        for load_id in load_ids:
            client.abort_load(load_id)


def _in_partitions(error: TablecastError) -> TablecastError:
    """Where it happened, in Spark's words."""
    message = _PART.sub(lambda found: f"partition {partition_of(int(found[1]))}", error.message)
    made = type(error)(message)
    made.details = error.details  # not as keywords: a detail may be called `message`
    return made


def _unknown(error: TablecastError) -> TablecastError:
    return type(error)(
        f"whether the rows were written is not known, because the commit was not answered: {error.message}. A stream finds "
        "out when it goes on; so does a job that is run again with the same writerId and batchId",
        **error.details,
    )
