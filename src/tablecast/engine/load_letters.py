"""Rows that a load could not write, as messages of a dead-letter topic, appended in the load's own commit: whoever sees
the rows that were written sees these too, and a load that is repeated repeats neither.

A letter's payload says what was the matter, and holds the row:

    {"_table": target, "_rejected": {pipeline, batch_id, code, column, reason}, "row": {column: value, …}}

They are staged as parts of their load, beside those with rows: lines of JSON, one `LoadLetter` each. A part of rows is an
Arrow stream, which never begins with a brace.

A row whose key is there already is known to be one only when the load is decided, against the table as it is then: its
letter is written there and then, and says `duplicate_key`.

Only a topic without sources takes letters: on one that tells the changes of tables they would not be changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tablecast.codec.log import MessageClass
from tablecast.core.routing import Append, content_hash, partition_of
from tablecast.core.shown import shown
from tablecast.engine.catalog import Catalog, Table
from tablecast.engine.decision import Command, Decision, View
from tablecast.errors import DuplicateKey, InvalidPart, InvalidTopic, TooLarge
from tablecast.model.change import Op
from tablecast.model.names import full_name_of
from tablecast.model.pipeline import DuplicateLetters, LoadLetter
from tablecast.model.topic import PayloadMode, Topic

MAX_LETTERS = 10_000  # of one load: more bad rows than that are a wrong query, not bad rows
MAX_LETTERS_BYTES = 64 * 2**20  # of their parts together: all are in memory until their commit
_decode_line = msgspec.json.Decoder(LoadLetter).decode


def holds_letters(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) == b"{"


def count_letters(path: Path) -> int:
    """All of them are looked at. Raises InvalidPart or TooLarge."""
    _check_size(path.stat().st_size)
    return sum(1 for _ in _read(path))


def letters_of(parts: Sequence[Path]) -> list[LoadLetter]:
    """Of those parts that hold any."""
    found = [path for path in parts if holds_letters(path)]
    _check_size(sum(path.stat().st_size for path in found))
    return [letter for path in found for letter in _read(path)]


def _check_size(size: int) -> None:
    if size > MAX_LETTERS_BYTES:
        raise TooLarge(
            f"the dead letters of a load have at most {MAX_LETTERS_BYTES} bytes, not {size}", limit=MAX_LETTERS_BYTES
        )


def _read(path: Path) -> Iterator[LoadLetter]:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            check_number(number + 1)
            try:
                yield _decode_line(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
                raise InvalidPart(f"line {number + 1} of the part is not a dead letter: {e}", line=number + 1) from e


def letter_appends(catalog: Catalog, source_table: str, letters: Sequence[LoadLetter]) -> list[Append]:
    """Raises UnknownTopic, InvalidTopic or TooLarge."""
    check_number(len(letters))
    said = MessageClass(source_table, Op.INSERT, PayloadMode.FULL, None)
    found: dict[tuple[int, int], Append] = {}
    for letter in letters:
        topic = _taking(catalog, letter.topic)
        key, payload = letter.key.encode(), _payload(source_table, letter)
        place = topic.topic_id, partition_of(key, topic.partitions)
        append = found.setdefault(place, Append(*place, said, [], [], []))
        append.keys.append(key)
        append.payloads.append(payload)
        append.hashes.append(content_hash(Op.INSERT, payload))
    return list(found.values())


def check_number(letters: int) -> None:
    """Raises TooLarge."""
    if letters > MAX_LETTERS:
        raise TooLarge(f"a load takes at most {MAX_LETTERS} dead letters, and this one has more", limit=MAX_LETTERS)


def duplicate_letter(to: DuplicateLetters, table: Table, values: Mapping[str, Any], error: DuplicateKey) -> LoadLetter:
    """`values` are those that the load gave."""
    row = shown(values)
    key = msgspec.json.encode([row.get(name) for name in table.schema.primary_key]).decode()
    return LoadLetter(to.topic, to.pipeline, error.message, row, key, error.code, None, to.batch_id)


def _taking(catalog: Catalog, name: str) -> Topic:
    topic = catalog.topic(full_name_of(name))
    if topic.routes:
        raise InvalidTopic(
            f"{topic.full_name} has sources: dead letters go to a topic that takes nothing else", topic=topic.full_name
        )
    return topic


def _payload(source_table: str, letter: LoadLetter) -> bytes:
    why = {
        "pipeline": letter.pipeline, "batch_id": letter.batch_id, "code": letter.code, "column": letter.column,
        "reason": letter.reason,
    }  # fmt: skip
    return msgspec.json.encode({"_table": source_table, "_rejected": why, "row": letter.row})


@dataclass(slots=True)
class WithLetters:
    """Another command, with letters in its commit."""

    command: Command
    source_table: str
    letters: Sequence[LoadLetter]

    @property
    def weight(self) -> int:
        return self.command.weight + len(self.letters)

    def decide(self, view: View) -> Decision:
        decision = self.command.decide(view)
        decision.letters = decision.letters + letter_appends(view.catalog, self.source_table, self.letters)
        check_number(sum(len(append.keys) for append in decision.letters))
        return decision
