"""Consumer groups as scripts a person can read and check: tests/unit/golden/group/*.txt.

A script is a list of steps: a command, a line of dashes, and what must be printed: the result, then the
whole state. To take over a wanted change, run this file as a program and read the diff.

    log START END                       what the log holds from now on
    now MS                              the clock
    first OFFSET                        a new group
    claim CONSUMER [limit=N] [max_deliveries=N] [auto_offset_reset]
    ack-upto OFFSET [by CONSUMER]
    ack OFFSET,… [by CONSUMER]
    nack OFFSET,… REASON [by CONSUMER]
    extend CONSUMER
    release CONSUMER [undelivered]
    expire
    reset OFFSET
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tablecast.codec.group import Acked, Claim, Fragment, Returned
from tablecast.core import group
from tablecast.errors import TablecastError

SCRIPTS = sorted((Path(__file__).parent / "golden" / "group").glob("*.txt"))
VISIBILITY_MS = 100
DASHES = "----"


class Play:
    """One group and its log, driven by the lines of a script."""

    def __init__(self) -> None:
        self.state = group.first(0)
        self.log_start = self.log_end = 0
        self.now_ms = 0

    def step(self, line: str) -> str:
        verb, *words = line.split()
        try:
            told = getattr(self, verb.replace("-", "_"))(*words)
        except TablecastError as error:
            told = f"{type(error).__name__}: {error}"
        return "\n".join([told, *self.shown()])

    def shown(self) -> list[str]:
        lag = group.lag(self.state, self.log_end)
        return [f"committed {self.state.committed}, lag {lag}", *map(fragment_text, self.state.fragments)]

    def log(self, start: str, end: str) -> str:
        self.log_start, self.log_end = int(start), int(end)
        return f"the log holds [{start}, {end})"

    def now(self, ms: str) -> str:
        self.now_ms = int(ms)
        return f"it is {ms}"

    def first(self, offset: str) -> str:
        self.state = group.first(int(offset))
        return "new group"

    def claim(self, consumer: str, *options: str) -> str:
        numbers = {name: int(value) for name, value in (word.split("=") for word in options if "=" in word)}
        self.state, got = group.claim(
            self.state,
            consumer=consumer,
            limit=numbers.get("limit", 100),
            log_start=self.log_start,
            log_end=self.log_end,
            now_ms=self.now_ms,
            visibility_ms=VISIBILITY_MS,
            max_deliveries=numbers.get("max_deliveries", 0),
            auto_offset_reset="auto_offset_reset" in options,
        )
        return claimed_text(got)

    def ack_upto(self, offset: str, *by: str) -> str:
        self.state, position = group.ack_upto(self.state, int(offset), consumer=name_in(by))
        return f"acknowledged up to {position}"

    def ack(self, offsets: str, *by: str) -> str:
        self.state, done = group.ack(self.state, numbers_in(offsets), consumer=name_in(by))
        left = f", left alone: {numbers_text(done.left_alone)}" if done.left_alone else ""
        return f"acknowledged up to {done.acknowledged_offset}{left}"

    def nack(self, offsets: str, reason: str, *by: str) -> str:
        self.state, count = group.nack(self.state, numbers_in(offsets), reason=reason, consumer=name_in(by))
        return f"{count} came back"

    def extend(self, consumer: str) -> str:
        self.state, deadline_ms = group.extend(
            self.state, consumer=consumer, now_ms=self.now_ms, visibility_ms=VISIBILITY_MS
        )
        return f"until {deadline_ms}"

    def release(self, consumer: str, *undelivered: str) -> str:
        self.state, count = group.release(self.state, consumer, delivered=not undelivered)
        return f"{count} came back"

    def expire(self) -> str:
        self.state, count = group.expire(self.state, self.now_ms)
        return f"{count} came back, next deadline {group.next_deadline(self.state)}"

    def reset(self, offset: str) -> str:
        self.state, dropped = group.reset(self.state, int(offset))
        return f"{dropped} claimed offsets dropped"


def numbers_in(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def numbers_text(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def name_in(words: tuple[str, ...]) -> str | None:
    return words[words.index("by") + 1] if words else None


def claimed_text(got: group.Claimed) -> str:
    lines = [f"skipped [{got.skipped[0]}, {got.skipped[1]})"] if got.skipped else []
    lines += [f"dead: {letter.offset} after {letter.deliveries}, {letter.reason}" for letter in got.dead]
    if got.start == got.end:
        return "\n".join([*lines, "nothing to give"])
    return "\n".join([*lines, f"given [{got.start}, {got.end}), delivery {numbers_text(got.deliveries)}"])


def fragment_text(part: Fragment) -> str:
    match part.status:
        case Acked():
            told = "acked"
        case Claim(consumer, deadline_ms, deliveries):
            told = f"claimed by {consumer} until {deadline_ms}, delivery {deliveries}"
        case Returned(None, deliveries, reason):
            told = f"returned after {deliveries}, {reason}"
        case Returned(consumer, deliveries, reason):
            told = f"returned by {consumer} after {deliveries}, {reason}"
    return f"  [{part.start}, {part.end}) {told}"


def played(script: str) -> str:
    """The script with the output of its steps as they are now."""
    play = Play()
    paragraphs = []
    for paragraph in re.split(r"\n{2,}", script.strip()):
        command, dashes, _ = paragraph.partition(f"\n{DASHES}")
        if not dashes:
            paragraphs.append(paragraph)  # a remark
            continue
        paragraphs.append(f"{command}\n{DASHES}\n{play.step(command)}")
    return "\n\n".join(paragraphs) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    script = path.read_text(encoding="utf-8")
    assert script.count(f"\n{DASHES}\n") > 3
    assert played(script) == script


if __name__ == "__main__":
    for path in SCRIPTS:
        path.write_text(played(path.read_text(encoding="utf-8")), encoding="utf-8")
