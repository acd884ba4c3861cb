"""What a check found: problems, each named by its kind and its first culprit, and figures."""

from __future__ import annotations

import enum
from fractions import Fraction

import msgspec


class Kind(enum.StrEnum):
    """What can be wrong. Each is a promise that was not kept."""

    LOST = "lost"  # an acknowledged write is not in its table, or not on a topic that asked for it
    DUPLICATED = "duplicated"  # one write, message id, offset or request is there twice
    REORDERED = "reordered"  # offsets, commit numbers, times or the changes of one row out of order
    SKIPPED = "skipped"  # a gap in the offsets; an ack that passed over what nobody in the group got
    TORN = "torn"  # a transaction partly there; a row without its message or a message without its row
    PHANTOM = "phantom"  # a message or row that nobody wrote, that was refused, or that was not asked for
    REDELIVERED = "redelivered"  # given to a group again after its ack was confirmed
    CLAIMED_TWICE = "claimed twice"  # given to a group twice with the same delivery count
    WRONG_CONTENT = "wrong content"  # it is there, but says something else than was written
    WRONG_PARTITION = "wrong partition"  # one partition key in two partitions


class Problem(msgspec.Struct, frozen=True):
    """All findings of one kind in one place (a topic, table or group); `culprit` is the first of `count`."""

    kind: Kind
    where: str
    culprit: str
    count: int

    def __str__(self) -> str:
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return f"{self.kind}: {self.where}: {self.culprit}{more}"


class TopicFigures(msgspec.Struct, frozen=True):
    """`expected` counts the acknowledged writes that the topic asked for, `covered` those that are on it."""

    topic: str
    expected: int
    covered: int
    messages: int
    unique: int
    gaps: int

    @property
    def coverage(self) -> Fraction:
        return Fraction(self.covered, self.expected) if self.expected else Fraction(1)

    @property
    def coverage_percent(self) -> float:
        return float(self.coverage * 100)

    @property
    def duplication(self) -> Fraction:
        return Fraction(self.messages, self.unique) if self.unique else Fraction(1)


class GroupFigures(msgspec.Struct, frozen=True):
    group: str
    topic: str
    deliveries: int
    unique: int
    acked: int


class WriteFigures(msgspec.Struct, frozen=True):
    """`settled` counts the writes of unknown outcome that turned out to be there."""

    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    settled: int = 0


class Report(msgspec.Struct, frozen=True):
    problems: list[Problem]
    writes: WriteFigures
    topics: dict[str, TopicFigures]
    groups: list[GroupFigures]

    @property
    def ok(self) -> bool:
        return not self.problems

    def kinds(self) -> set[Kind]:
        return {problem.kind for problem in self.problems}

    def raise_if_bad(self) -> None:
        """AssertionError with the whole summary, so that a test framework shows it."""
        if self.problems:
            raise AssertionError(self.table())

    def table(self) -> str:
        """A summary for people."""
        return "\n".join([*self._write_lines(), *self._topic_lines(), *self._group_lines(), *self._problem_lines()])

    def _write_lines(self) -> list[str]:
        w = self.writes
        return [
            f"writes: {w.acknowledged} acknowledged, {w.refused} refused, "
            f"{w.unknown} unknown ({w.settled} of them found)"
        ]

    def _topic_lines(self) -> list[str]:
        lines = [_TOPIC_LINE.format("topic", "expected", "covered", "coverage", "messages", "duplication", "gaps")]
        for t in self.topics.values():
            coverage, duplication = f"{_floored_percent(t.coverage)} %", f"{float(t.duplication):.4f}"
            lines.append(_TOPIC_LINE.format(t.topic, t.expected, t.covered, coverage, t.messages, duplication, t.gaps))
        return lines if self.topics else []

    def _group_lines(self) -> list[str]:
        lines = [_GROUP_LINE.format("group", "topic", "deliveries", "unique", "acked")]
        for g in self.groups:
            lines.append(_GROUP_LINE.format(g.group, g.topic, g.deliveries, g.unique, g.acked))
        return lines if self.groups else []

    def _problem_lines(self) -> list[str]:
        return [str(problem) for problem in self.problems] or ["no problems"]


_TOPIC_LINE = "{:<32} {:>10} {:>10} {:>12} {:>10} {:>12} {:>6}"
_GROUP_LINE = "{:<32} {:<24} {:>10} {:>10} {:>10}"


def _floored_percent(part: Fraction) -> str:
    """Rounded down: one lost write in a million must not print as 100.00."""
    hundredths = int(part * 10_000)
    return f"{hundredths // 100}.{hundredths % 100:02}"


class Findings:
    """Collects problems while checks run: the first culprit of each kind and place, and a count."""

    def __init__(self) -> None:
        self._first: dict[tuple[Kind, str], str] = {}
        self._count: dict[tuple[Kind, str], int] = {}

    def add(self, kind: Kind, where: str, culprit: str) -> None:
        place = (kind, where)
        self._first.setdefault(place, culprit)
        self._count[place] = self._count.get(place, 0) + 1

    def problems(self) -> list[Problem]:
        return [
            Problem(kind, where, culprit, self._count[kind, where]) for (kind, where), culprit in self._first.items()
        ]
