"""Rows that a load could not write, as messages of a dead-letter topic, appended in the load's own commit: whoever sees
the rows that were written sees these too, and a load that is repeated repeats neither.

A letter's payload says what was the matter, and holds the row:

    {"_table": target, "_rejected": {pipeline, batch_id, code, column, reason}, "row": {column: value, …}}

Only a topic without sources takes letters: on one that tells the changes of tables they would not be changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tablecast.codec.log import MessageClass
from tablecast.core.routing import Append, content_hash, partition_of
from tablecast.engine.catalog import Catalog
from tablecast.engine.decision import Command, Decision, View
from tablecast.errors import InvalidTopic, TooLarge
from tablecast.model.change import Op
from tablecast.model.pipeline import LoadLetter
from tablecast.model.topic import PayloadMode, Topic

MAX_LETTERS = 10_000  # of one load: more bad rows than that are a wrong query, not bad rows


def letter_appends(catalog: Catalog, source_table: str, letters: Sequence[LoadLetter]) -> list[Append]:
    """Raises UnknownTopic, InvalidTopic or TooLarge."""
    if len(letters) > MAX_LETTERS:
        raise TooLarge(f"a load takes at most {MAX_LETTERS} dead letters, not {len(letters)}", limit=MAX_LETTERS)
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


def _taking(catalog: Catalog, name: str) -> Topic:
    topic = catalog.topic(name)
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
        return decision
