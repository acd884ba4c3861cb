"""Options of `spark.read|readStream|write|writeStream.format("tablecast")`: read from text, checked, with their defaults.

Spark hands options over as text and in any case. A name that nobody knows is refused: a misspelt `startingOfsets` would
otherwise read everything. Credentials are options, a file, or the environment of the driver:

    user and password | user and passwordFile | token     else TABLECAST_USER with TABLECAST_PASSWORD, or TABLECAST_TOKEN

They travel inside the pickled reader to the executors, and appear in no repr and no message.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from tablecast.client.bulk import BulkClient, Server
from tablecast.client.wire import DEFAULT_NAMESPACE
from tablecast.codec.values import coercion
from tablecast.errors import InvalidRequest, TypeMismatch
from tablecast.model.schema import ColumnType, TypeName
from tablecast.spark.offsets import EARLIEST, LATEST, Position, position

SOURCE_NAME = "tablecast"
USER, PASSWORD, TOKEN = "TABLECAST_USER", "TABLECAST_PASSWORD", "TABLECAST_TOKEN"
_SERVER = ("url", "user", "password", "passwordFile", "token", "caFile", "timeoutSeconds")
_TARGET = ("topic", "table", "namespace")
_READ = (
    "decode",
    "sourceTable",
    "allowPartial",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "group",
    "includeSeq",
    "pushFilters",
)
_WRITE = ("mode", "opColumn", "bulk", "writerId", "batchId", "checkpointLocation")
KNOWN = (*_SERVER, *_TARGET, *_READ, *_WRITE)
TIMEOUT_SECONDS = 60.0  # for one answer of the server to begin
MAX_PARTITIONS = 10_000  # tasks of one read; the cost of a task is milliseconds, so more would only wait


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, from where, how much at a time. `position`s are resolved against the topic when a read is planned."""

    server: Server
    topic: str | None = None
    table: str | None = None
    namespace: str = DEFAULT_NAMESPACE
    decode: bool = False
    source_table: str | None = None
    allow_partial: bool = False
    starting: Position | None = None
    ending: Position | None = None
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    group: str | None = None
    include_seq: bool = False
    push_filters: bool = False

    def connect(self) -> BulkClient:
        """Of the thread that calls it; never pickled."""
        return BulkClient(self.server, namespace=self.namespace)


def server_options(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Server:
    """How to reach the server, and as whom."""
    options = _known(given)
    url = options.get("url")
    if not url:
        raise InvalidRequest('option "url" is missing: it is the address of the server, http://host:port')
    if "@" in urlsplit(url).netloc:
        raise InvalidRequest('option "url" holds credentials, and Spark shows it in plans: use "user" and "password"')
    user, password, token = _credentials(options, environment)
    timeout = _number(options, "timeoutSeconds")
    return Server(
        url, user=user, password=password, token=token, ca_file=options.get("cafile"),
        timeout_seconds=TIMEOUT_SECONDS if timeout is None else float(timeout),
    )  # fmt: skip


def read_options(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> ReadOptions:
    server, options = server_options(given, environment), _known(given)
    topic, table = target(given)
    _check_fit(options, topic)
    return ReadOptions(
        server,
        topic,
        table,
        options.get("namespace", DEFAULT_NAMESPACE),
        decode=_flag(options, "decode", False),
        source_table=options.get("sourcetable"),
        allow_partial=_flag(options, "allowPartial", False),
        starting=_place(options, "startingOffsets", "startingTimestamp"),
        ending=_place(options, "endingOffsets", "endingTimestamp"),
        max_offsets_per_trigger=_number(options, "maxOffsetsPerTrigger"),
        min_partitions=_number(options, "minPartitions", MAX_PARTITIONS),
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        group=options.get("group"),
        include_seq=_flag(options, "includeSeq", False),
        push_filters=_flag(options, "pushFilters", False),
    )


def target(given: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The topic or the table, exactly one of them."""
    options = _known(given)
    topic, table = options.get("topic"), options.get("table")
    if bool(topic) == bool(table):
        raise InvalidRequest('give option "topic" or option "table", one of them')
    return topic or None, table or None


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """By lower-case name."""
    names = {name.lower(): name for name in KNOWN}
    options = {name.lower(): text for name, text in given.items()}
    for name in options:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {names[close[0]]!r}?" if close else f": the options are {', '.join(KNOWN)}"
            raise InvalidRequest(f"there is no option {name!r}{hint}", option=name)
    return options


_OF_TOPICS = {name.lower() for name in _READ if name not in ("includeSeq", "minPartitions", "pushFilters")}


def _check_fit(options: Mapping[str, str], topic: str | None) -> None:
    unfit = {"includeseq"} if topic else _OF_TOPICS
    for name in sorted(unfit & set(options)):
        spelled = next(known for known in KNOWN if known.lower() == name)
        raise InvalidRequest(f'option "{spelled}" is for reading a {"table" if topic else "topic"}', option=spelled)


# --- credentials --------------------------------------------------------------------------------------------------


def _credentials(
    options: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[str | None, str | None, str | None]:
    user, token, file = options.get("user"), options.get("token"), options.get("passwordfile")
    password = options.get("password")
    if password is not None and file is not None:
        raise InvalidRequest('give option "password" or option "passwordFile", not both')
    if token is not None:
        if user is not None or password is not None or file is not None:
            raise InvalidRequest("give a user with a password, or a token, not both")
        return None, None, token
    if user is None and password is None and file is None and environment.get(TOKEN):
        return None, None, environment[TOKEN]
    user = user or environment.get(USER)
    password = _from_file(file) if file is not None else password or environment.get(PASSWORD)
    if user is None or password is None:
        raise InvalidRequest(
            'no credentials: give options "user" and "password" (or "passwordFile"), or "token", '
            f"or set {USER} and {PASSWORD}, or {TOKEN}, before Spark starts"
        )
    return user, password, None


def _from_file(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidRequest(f'option "passwordFile": {file} cannot be read ({type(e).__name__})') from None


# --- values -------------------------------------------------------------------------------------------------------


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise InvalidRequest(f'option "{name}" is true or false, not {text!r}', option=name)
    return text.strip().lower() == "true"


def _number(options: Mapping[str, str], name: str, most: int = 2**63 - 1) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= most):
        raise InvalidRequest(f'option "{name}" is a whole number from 1 to {most}, not {text!r}', option=name)
    return int(text)


def _place(options: Mapping[str, str], offsets: str, timestamp: str) -> Position | None:
    by_offset, by_time = options.get(offsets.lower()), options.get(timestamp.lower())
    if by_offset is not None and by_time is not None:
        raise InvalidRequest(f'give option "{offsets}" or option "{timestamp}", not both')
    if by_time is not None:
        return Position(timestamp, ts_ms=milliseconds(timestamp, by_time))
    return None if by_offset is None else position(offsets, by_offset)


_TIMESTAMP = ColumnType(TypeName.TIMESTAMP)


def milliseconds(name: str, text: str) -> int:
    """ISO 8601 (UTC unless it says otherwise), or milliseconds since 1970. Between two milliseconds, the later one."""
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment: datetime = coercion(_TIMESTAMP, name)(text)
    except TypeMismatch:
        raise InvalidRequest(
            f'option "{name}" is an ISO 8601 time or milliseconds, not {text!r}', option=name
        ) from None
    return -(-int(moment.timestamp() * 1_000_000) // 1000)


__all__ = ["EARLIEST", "KNOWN", "LATEST", "SOURCE_NAME", "ReadOptions", "read_options", "server_options", "target"]
